"""Layers that run by chance, in a project that shards them."""

import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Encoder(nn.Module):
    def __init__(self, make, depth, drop, seed):
        super().__init__()
        self.layers = nn.ModuleList(make(i) for i in range(depth))
        self.extra = nn.Linear(8, 8)
        self.drop, self.rng = drop, random.Random(seed)

    def forward(self, x):
        if torch.rand(1) < 0.5:
            x = self.extra(x)  # LNT414
        for layer in self.layers:
            if self.training:
                drawn = torch.rand([])
                if drawn < self.drop:
                    continue  # LNT414
            x = layer(x)
        return self.shared(self.scaled(self.tail(x)))

    def tail(self, x):
        if self.drop > 0.0:
            kept = torch.rand(len(self.layers))
        for i, layer in enumerate(self.layers):
            if not self.training or kept[i] > self.drop:
                x, _ = layer(x)  # LNT414
        return x

    def scaled(self, x):
        for layer in self.layers:
            keep = float(np.random.random() > self.drop)
            x = keep * layer(x) + (1 - keep) * x
            if random.random() < 0.1:
                x = x + torch.randn_like(x)  # noise is no layer
        return x

    def shared(self, x):
        same = torch.Generator().manual_seed(0)
        for layer in self.layers:
            if torch.rand(1, generator=same) > self.drop and self.rng.random() > self.drop:
                x = layer(x)
        drawn = torch.rand(1)
        dist.broadcast(drawn, 0)
        if drawn < self.drop:
            x = self.extra(x)
        skipped = self.training and random.random() < self.drop
        if not skipped or is_sharded(self):
            x = self.extra(x)
        for layer in self.layers:
            together = is_sharded(self)
            if skipped and not together:
                continue
            x = layer(x)
        if self.training:
            x = self.extra(x)
        return x


def main(make, batches):
    model = FSDP(Encoder(make, 4, 0.1, 0))
    for x in batches:
        if random.random() < 0.5:
            model(x)  # LNT106
        with torch.no_grad():
            model(x)
