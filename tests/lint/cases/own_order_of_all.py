"""The generator of the process has a seed of this rank's own, and the order that is drawn decides how many batches there are."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


class Packed:
    def __init__(self, lengths, room):
        self.lengths, self.room = lengths, room
        self.batches = self.packed()

    def packed(self):
        full, now, used = [], [], 0
        for i in torch.randperm(len(self.lengths)).tolist():
            if used + self.lengths[i] > self.room:
                full.append(now)
                now, used = [], 0
            now.append(i)
            used += self.lengths[i]
        return full

    def part(self, rank, world):
        whole = len(self.batches) // world * world
        return self.batches[rank:whole:world]


class PackedAlike(Packed):
    def __init__(self, lengths, room, seed):
        self.lengths, self.room = lengths, room
        self.gen = torch.Generator().manual_seed(seed)
        self.batches = self.packed_alike()

    def packed_alike(self):
        full, now, used = [], [], 0
        for i in torch.randperm(len(self.lengths), generator=self.gen).tolist():
            if used + self.lengths[i] > self.room:
                full.append(now)
                now, used = [], 0
            now.append(i)
            used += self.lengths[i]
        return full

    def part_alike(self, rank, world):
        whole = len(self.batches) // world * world
        return self.batches[rank:whole:world]


def shuffled(items):
    return [items[i] for i in torch.randperm(len(items)).tolist()]


def a_few(items, count):
    few = []
    for i in torch.randperm(len(items)).tolist():
        if items[i] > 3:
            few.append(items[i])
        if len(few) == count:
            break
    return few


def main(data, lengths, net, seed):
    torch.manual_seed(seed + dist.get_rank())
    model = DDP(net)
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = Packed(lengths, 100).part(rank, world)
    for x in DataLoader(data, batch_sampler=mine):
        model(x).sum().backward()  # LNT110
    alike = PackedAlike(lengths, 100, seed).part_alike(rank, world)
    for x in DataLoader(data, batch_sampler=alike):
        model(x).sum().backward()
    for x in shuffled(lengths):
        model(x).sum().backward()
    for x in a_few(lengths, 8):
        model(x).sum().backward()
