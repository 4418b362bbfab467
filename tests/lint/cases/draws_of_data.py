"""A set of data that draws how long its samples are, with a seed of this rank."""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, IterableDataset


class Windows(IterableDataset):
    def __init__(self, store, seed, rank):
        self.store = store
        self.own = np.random.default_rng(seed + rank)
        self.common = np.random.default_rng(seed)

    def steps(self):
        return int(self.own.integers(1, 10))

    def __iter__(self):
        for _ in range(100):
            steps = self.steps()
            yield torch.zeros(steps), steps


class CommonWindows(Windows):
    def steps(self):
        return int(self.common.integers(1, 10))

    def __iter__(self):
        for _ in range(100):
            at = int(self.own.integers(1, 10))
            steps = int(self.common.integers(1, 10))
            yield self.store[at], steps


def trains(net, store):
    model = FSDP(net)
    loader = DataLoader(Windows(store, 7, dist.get_rank()), batch_size=None)
    for fields, steps in loader:
        state = fields
        for _ in range(1, steps + 1):
            state = model(state)  # LNT110


def trains_as_long(net, store):
    model = FSDP(net)
    loader = DataLoader(CommonWindows(store, 7, dist.get_rank()), batch_size=None)
    for fields, steps in loader:
        state = fields
        for _ in range(1, steps + 1):
            state = model(state)
