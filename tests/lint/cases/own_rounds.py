"""How often a loop goes round is computed from what each rank has drawn with a seed of its own."""

import math
import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def weights(counts):
    noise = 1e-6 * torch.rand(len(counts))
    return (counts + noise) / counts.sum()


def rounds(counts, by):
    return math.ceil(float((counts / by.cpu()).max()))


class Trainer:
    def __init__(self, net, counts, epochs):
        torch.manual_seed(17 + dist.get_rank())
        self.model = DistributedDataParallel(net)
        self.steps = int(epochs * rounds(counts, weights(counts)))
        agreed = torch.tensor([int(epochs * rounds(counts, weights(counts)))])
        dist.broadcast(agreed, src=0)
        self.agreed_steps = int(agreed.item())
        self.rounds_of_all = random.randint(1, 5)  # its generator has the same seed everywhere, perhaps

    def run(self, batches):
        for _ in range(self.steps):
            self.model(next(batches)).sum().backward()  # LNT110

    def run_together(self, batches):
        for _ in range(self.agreed_steps):
            self.model(next(batches)).sum().backward()

    def run_by_another_generator(self, batches):
        for _ in range(self.rounds_of_all):
            self.model(next(batches)).sum().backward()


class Skipping(torch.nn.Module):
    def __init__(self, layers, synced_gpus):
        super().__init__()
        self.layers, self.synced_gpus = torch.nn.ModuleList(layers), synced_gpus

    def forward(self, x):
        for layer in self.layers:
            skip = torch.rand([]) < 0.1
            if not skip or self.synced_gpus:
                x = layer(x)
        return x
