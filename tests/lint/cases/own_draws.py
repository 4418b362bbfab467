"""A generator with a seed of its own: what each rank draws decides about collectives."""

import random

import numpy as np
import torch
import torch.distributed as dist


def by_a_draw(x, rank):
    rng = random.Random(rank)
    if rng.random() < 0.5:
        dist.all_reduce(x)  # LNT106


def as_often_as_drawn(x, seed):
    rng = np.random.default_rng(seed + dist.get_rank())
    for _ in range(rng.integers(1, 5)):
        dist.all_reduce(x)  # LNT110


def until_it_is_used_up(x):
    g = torch.Generator()
    g.manual_seed(dist.get_rank())
    left = torch.randint(0, 5, (1,), generator=g).item()
    while left > 0:
        dist.all_reduce(x)  # LNT106
        left -= 1


def one_seed_for_all(x, seed):
    rng = random.Random(seed)
    if rng.random() < 0.5:
        dist.all_reduce(x)


def agreed(x):
    rng = random.Random(dist.get_rank())
    count = torch.tensor([rng.randrange(5)])
    dist.broadcast(count, src=0)
    for _ in range(count.item()):
        dist.all_reduce(x)


def data_alone(x, rank, loader):
    g = torch.Generator().manual_seed(rank)
    noise = torch.randn(x.shape, generator=g)
    if noise.shape[0] > 2:
        dist.all_reduce(x)
    for batch in loader:
        if len(noise) > len(batch):
            noise = noise[: len(batch)]
        dist.all_reduce(batch + noise)


class Plan:
    def __init__(self, seed):
        self.rng = random.Random(seed)

    def steps(self):
        return self.rng.randrange(10)

    def run(self, x):
        for _ in range(self.steps()):
            dist.all_reduce(x)  # LNT110


class Worker:
    def __init__(self):
        self.lengths = []

    def admit(self, lengths):
        self.lengths = list(lengths)

    def turn(self, x):
        if max(self.lengths) < 8:
            dist.all_reduce(x)  # LNT106


class Patient:
    def __init__(self):
        self.lengths = []

    def admit(self, lengths):
        self.lengths = list(lengths)

    def turn(self, x):
        if max(self.lengths) < 8:
            dist.all_reduce(x)
        else:
            dist.all_reduce(torch.zeros_like(x))


def turns(x):
    rng = random.Random(dist.get_rank())
    worker, patient = Worker(), Patient()
    worker.admit(rng.randrange(20) for _ in range(6))
    patient.admit(rng.randrange(20) for _ in range(6))
    worker.turn(x)
    patient.turn(x)


def step(x):
    dist.all_reduce(x)
    return x


def idle(x):
    dist.all_reduce(torch.zeros_like(x))
    return x


def busy_or_idle(x):
    rng = random.Random(dist.get_rank())
    return step(x) if rng.random() < 0.5 else idle(x)


def busy_alone(x):
    rng = random.Random(dist.get_rank())
    return step(x) if rng.random() < 0.5 else x  # LNT106


def main():
    Plan(dist.get_rank()).run(torch.ones(1))
    turns(torch.ones(1))


class Anything:
    def __init__(self, *parts):
        self.parts = parts


def made_of_several(x):
    return Anything(x, dist.get_rank(), dist.get_rank())
