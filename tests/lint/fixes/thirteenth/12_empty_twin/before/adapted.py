import torch
import torch.nn as nn


class Adapted(nn.Module):
    """A frozen linear map with a small trainable correction."""

    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Tower(nn.Module):
    def __init__(self, width=256, depth=4, rank=8):
        super().__init__()
        self.blocks = nn.ModuleList(Adapted(width, rank) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


def freeze_base(tower):
    for block in tower.blocks:
        block.base.requires_grad_(False)
    return tower
