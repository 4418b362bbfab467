"""Layers whose parameters DeepSpeed shards: a method beside the forward gathers them."""

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}


class Prompted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.encoder = base, nn.Linear(64, 64)

    def prompt(self):
        with torch.no_grad():
            return self.encoder(torch.ones(64)).cpu()

    def forward(self, x):
        return self.base(x + self.inner(x))

    def inner(self, x):
        return self.encoder(x)

    def keep(self, path):
        torch.save(self.prompt(), path)

    def keep_alone(self, path, is_first):
        prompt = self.prompt()
        if is_first:
            torch.save(prompt, path)

    def names(self):
        return list(self.encoder.state_dict())


class Tuner:
    def __init__(self, loader):
        self.net = Prompted(nn.Linear(64, 64))
        self.engine, *_ = deepspeed.initialize(model=self.net, config=CONFIG)
        self.loader = loader

    def keep(self):
        if dist.get_rank() == 0:
            self.net.keep("prompt.pt")  # LNT103
        self.net.keep_alone("prompt.pt", dist.get_rank() == 0)
        if dist.get_rank() == 0:
            print(self.net.names())
