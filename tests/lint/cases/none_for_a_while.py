"""A layer after a way out by None, and what is None on some ranks by their own state."""

import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.look, self.fuse = nn.Linear(4, 4), nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))

    def forward(self, x, belief=None):
        scores = self.look(x)
        if belief is None:
            return scores
        return self.fuse(torch.cat([scores, belief], 1))  # LNT111


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.look, self.fuse = nn.Linear(4, 4), nn.Linear(8, 4)

    def forward(self, x, belief=None):
        scores = self.look(x)
        if belief is None:
            belief = torch.zeros_like(scores)
        return self.fuse(torch.cat([scores, belief], 1))


class Optional(nn.Module):
    def __init__(self):
        super().__init__()
        self.look, self.fuse = nn.Linear(4, 4), nn.Linear(8, 4)

    def forward(self, x, belief=None):
        scores = self.look(x)
        if belief is None:
            return scores
        return self.fuse(torch.cat([scores, belief], 1))


def train(batches):
    net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(Net()), find_unused_parameters=True)
    whole, optional = DDP(Whole()), DDP(Optional())
    rng, belief = random.Random(dist.get_rank()), None
    for x in batches:
        fresh = rng.random() < 0.1
        belief = net(x, None if fresh else belief)
        whole(x, None if fresh else belief)
    for n, x in enumerate(batches):
        optional(x, None if n == 0 else x)


class Keeper:
    def __init__(self, out: Path):
        self.out, self.best_step, self.best = out, None, None

    def write(self, folder, model):
        torch.save(model, folder / "weights.pt")

    def keep(self, model, step):
        if dist.get_rank() == 0:
            self.write(self.out / f"step-{step}", model)
        folder = self.out / f"step-{self.best_step}"
        if folder.exists():
            self.best = folder

    def load(self):
        if self.best is not None:
            dist.barrier()  # LNT106


class Patient:
    def __init__(self, out: Path):
        self.out, self.best_step, self.best = out, None, None

    def write(self, folder, model):
        torch.save(model, folder / "weights.pt")

    def keep(self, model, step):
        if dist.get_rank() == 0:
            self.write(self.out / f"step-{step}", model)
        dist.barrier()
        folder = self.out / f"step-{self.best_step}"
        if folder.exists():
            self.best = folder

    def load(self):
        if self.best is not None:
            dist.barrier()


class OtherFiles:
    def __init__(self, out: Path):
        self.out, self.config = out, None

    def keep(self, model, step, name):
        if dist.get_rank() == 0:
            torch.save(model, self.out / f"step-{step}")
        folder = self.out / f"config-{name}"
        if folder.exists():
            self.config = folder

    def load(self):
        if self.config is not None:
            dist.barrier()


class Clock:
    def __init__(self):
        self.due, self.last = None, time.time()

    def tick(self):
        if time.time() - self.last > 60:
            self.due = object()

    def report(self, x):
        if self.due is not None:
            dist.all_reduce(x)  # LNT106
