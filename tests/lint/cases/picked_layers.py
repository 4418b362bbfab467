"""Which of several layers runs is drawn by each rank with a seed of its own, or with one for all."""

import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


class ByWord(nn.Module):
    def __init__(self):
        super().__init__()
        self.high = nn.Linear(4, 4)
        self.low = nn.Linear(4, 4)

    def forward(self, name, x):
        expert = getattr(self, name)
        return expert(x)  # LNT414


class ByCondition(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(4, 4, 3)
        self.flat = nn.Linear(4, 4)

    def forward(self, x, is_wide):
        if is_wide == 1:
            return self.wide(x)
        return self.flat(x)  # LNT414


class ByNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, k, x):
        return self.heads[k](x)  # LNT414


class DrawsItself(nn.Module):
    def __init__(self, seed, rank):
        super().__init__()
        self.random = random.Random(seed + rank)
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        head = self.heads[self.random.randrange(3)]
        return head(x)  # LNT414


def pick(names, generator):
    return names[int(torch.randint(len(names), (1,), generator=generator))]


def trains(loader):
    rank = dist.get_rank()
    generator = torch.Generator()
    generator.manual_seed(7 + rank)
    by_word, by_number = ByWord(), DDP(ByNumber())
    fully_shard(by_word.high)
    by_condition = DDP(ByCondition())
    itself = DDP(DrawsItself(3, rank))
    for x in loader:
        k = int(torch.randint(3, (1,), generator=generator))
        by_word(pick(["high", "low"], generator), x).sum().backward()
        by_number(k, x).sum().backward()
        by_condition(x, k).sum().backward()
        itself(x).sum().backward()


# Healthy.


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.high = nn.Linear(4, 4)
        self.low = nn.Linear(4, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.random = random.Random(3)

    def forward(self, name, k, x):
        noise = torch.rand(x.shape, generator=None)
        one = self.heads[self.random.randrange(3)]
        return getattr(self, name)(x + noise) + self.heads[k](x) + one(x)


def trains_together(loader, seed):
    rank = dist.get_rank()
    shared, own = torch.Generator(), torch.Generator()
    shared.manual_seed(seed)
    own.manual_seed(seed + rank)
    model = DDP(Expert())
    for step, x in enumerate(loader):
        name = pick(["high", "low"], shared)
        noise = torch.randn(x.shape, generator=own)
        model(name, step % 3, x + noise).sum().backward()
        k = torch.randint(3, (1,), generator=own)
        dist.broadcast(k, src=0)
        model("high", int(k), x).sum().backward()
