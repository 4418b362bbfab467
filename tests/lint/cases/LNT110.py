"""Loops of another length on each rank."""

import itertools

import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.utils.data import DataLoader, DistributedSampler


def shares(rank, world, items):
    for x in items[rank::world]:
        dist.all_reduce(x)  # LNT110


def numbers(rank, world, items):
    mine = list(range(rank, len(items), world))
    for start in range(0, len(mine), 2):
        dist.all_reduce(items[start])  # LNT110


def iterator(rank, world, items):
    for x in itertools.islice(items, rank, None, world):
        dist.all_reduce(x)  # LNT110


def batches(rank, items):
    for n, x in enumerate(items):
        if rank == 2 and n == 5:
            return
        yield x


def generated(rank, items):
    for x in batches(rank, items):
        dist.all_reduce(x)  # LNT110


# Quiet.


def blocks(rank, world, items):
    per = len(items) // world
    for x in items[rank * per : (rank + 1) * per]:
        dist.all_reduce(x)


def sampled(rank, world, items):
    sampler = DistributedSampler(items, num_replicas=world, rank=rank)
    for x in DataLoader(items, sampler=sampler):
        dist.all_reduce(x)


def joined(rank, world, items, model):
    with Join([model]):
        for x in items[rank::world]:
            dist.all_reduce(x)


def after(rank, world, items):
    total = 0
    for x in items[rank::world]:
        total += x
    dist.all_reduce(total)


class Shared(torch.utils.data.IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        for i, item in enumerate(self.items):
            if i % dist.get_world_size() != dist.get_rank():
                continue
            yield item


class Endless(Shared):
    def __iter__(self):
        while True:
            for i, item in enumerate(self.items):
                if i % dist.get_world_size() != dist.get_rank():
                    continue
                yield item


def own_share(items):
    for item in torch.utils.data.DataLoader(Shared(items)):
        dist.all_reduce(item)  # LNT110


def never_ends(items):
    for item in torch.utils.data.DataLoader(Endless(items)):
        dist.all_reduce(item)


def scores(items):
    if dist.get_rank() != 0:
        return {}
    return {"loss": items}


def by_name(items):
    for value in scores(items).values():
        dist.all_reduce(value)  # LNT110
