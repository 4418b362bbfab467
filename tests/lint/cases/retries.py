"""How often a rank tries again until all have what they need: as often as it has drawn, or as its own memory says."""

import random

import torch
import torch.distributed as dist


def all_have(flag):
    value = torch.tensor(int(flag))
    dist.all_reduce(value, op=dist.ReduceOp.MIN)
    return bool(value.item())


class Draws:
    def __init__(self, loaders, rank, seed):
        self.random = random.Random(seed + rank)
        self.loaders = loaders
        self.names = sorted(loaders)
        self.limits = {name: len(loaders[name]) for name in self.names}

    def batch(self, name):
        for _ in range(self.limits[name]):
            batch = next(self.loaders[name])
            if all_have(batch.abs().max() < 1000):  # LNT110
                return batch
        return None

    def again(self, name):
        tries = 0
        while tries < self.limits[name]:
            tries += 1
            if all_have(next(self.loaders[name]).numel()):  # LNT106
                break

    def run(self):
        name = self.names[self.random.randrange(len(self.names))]
        self.batch(name)
        self.again(name)


def by_memory(loader):
    free, _ = torch.cuda.mem_get_info()
    for _ in range(free // (1 << 30)):
        if all_have(next(loader).numel()):  # LNT110
            break


# Healthy.


class SameForAll:
    def __init__(self, loaders, rank, seed):
        self.random = random.Random(seed)
        self.own = random.Random(seed + rank)
        self.loaders = loaders
        self.names = sorted(loaders)
        self.limits = {name: len(loaders[name]) for name in self.names}
        most = torch.tensor(max(self.limits.values()))
        dist.broadcast(most, src=0)
        self.most = int(most)

    def batch(self, name):
        for _ in range(self.limits[name]):
            batch = next(self.loaders[name])
            if all_have(batch.abs().max() < 1000):
                return batch
        return None

    def of_its_own(self, name):
        for _ in range(self.most):
            if all_have(next(self.loaders[name]).numel()):
                break

    def run(self):
        self.batch(self.names[self.random.randrange(len(self.names))])
        self.of_its_own(self.names[self.own.randrange(len(self.names))])
