"""Lists into which a rank puts what is its own, and parts of which the last is shorter."""

import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Bucket:
    def __init__(self, items, rank, chunk):
        self.items = items
        self.start = min(rank * chunk, len(items))
        self.end = min(self.start + chunk, len(items))

    @property
    def count(self):
        return self.end - self.start


class Optimizer:
    def __init__(self, groups, chunk):
        self.buckets = [Bucket(g, dist.get_rank(), chunk) for g in groups]

    def step(self):
        touched = []
        for bucket in self.buckets:
            if bucket.count == 0:
                continue
            touched.append(bucket)
        for bucket in touched:  # those of this rank
            dist.all_reduce(bucket.items)  # LNT110

    def step_of_all(self):
        touched = []
        for bucket in self.buckets:
            if bucket.count == 0:
                print("nothing here")
            touched.append(bucket)
        for bucket in touched:
            dist.all_reduce(bucket.items)

    def step_of_both(self):
        touched = []
        for bucket in self.buckets:
            if bucket.count == 0:
                touched.append(bucket)
            else:
                touched.append(bucket)
        for bucket in touched:
            dist.all_reduce(bucket.items)


def own_parameters(parameters):
    mine = []
    for i, p in enumerate(parameters):
        if i % dist.get_world_size() == dist.get_rank():
            mine.append(p)
    for p in mine:
        dist.all_reduce(p)  # LNT110


def own_block(parameters, each):
    mine = []
    for i, p in enumerate(parameters):
        if i // each == dist.get_rank():
            mine.append(p)
    for p in mine:
        dist.all_reduce(p)


def padded_parameters(parameters, blank):
    mine = []
    for i, p in enumerate(parameters):
        if i % dist.get_world_size() == dist.get_rank():
            mine.append(p)
    if len(parameters) % dist.get_world_size():
        mine.append(blank)
    for p in mine:
        dist.all_reduce(p)


def split_up(net, items, n_gpus):
    model = DistributedDataParallel(net)
    mine = torch.split(items, math.ceil(len(items) / n_gpus))[dist.get_rank()]
    for batch in DataLoader(mine, batch_size=8):
        model(batch).sum().backward()  # LNT110


def split_by_count(net, items, each):
    model = DistributedDataParallel(net)
    mine = torch.split(items, each)[dist.get_rank()]
    for batch in DataLoader(mine, batch_size=8):
        model(batch).sum().backward()
