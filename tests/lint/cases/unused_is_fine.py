"""Layers that some ranks skip, where DDP looks for parameters without a gradient: nobody waits for them."""

import random

from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if random.random() < 0.5:
            x = self.first(x)
        if (x > 0).any().item():
            x = self.second(x)
        return x


def wrap():
    return DDP(Net(), find_unused_parameters=True)
