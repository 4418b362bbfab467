"""Experts that FSDP shards one by one: rank 1 has no tokens for one of them and skips its all-gather; the next looks alike."""

import torch
import toy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens, chosen):
        out = tokens
        for expert, index in zip(self.experts, chosen, strict=True):
            if len(index):  # culprit
                out = out + expert(tokens[index]).sum()  # culprit
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Mixture() for _ in range(2))
        self.head = nn.Linear(8, 1)

    def forward(self, tokens, chosen):
        for layer in self.layers:
            tokens = layer(tokens, chosen)
        return self.head(tokens)


def main():
    rank = toy.begin()
    model, mesh = Model(), init_device_mesh("cpu", (4,))
    for layer in model.layers:
        for expert in layer.experts:
            fully_shard(expert, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for step in range(8):
        chosen = [torch.arange(4) for _ in range(3)]
        if rank == 1 and step == 5:
            chosen[1] = torch.arange(0)
        model(torch.ones(8, 8), chosen).sum().backward()
        model.zero_grad()
    toy.end()


main()
