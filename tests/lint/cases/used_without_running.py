"""A layer that does not run where the batch has nothing for it; its parameters get gradients all the same, or do not."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Touched(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv1d(8, 8, 1), nn.Linear(8, 8)

    def forward(self, x, mask):
        if not mask.any():
            return sum(p.sum() for p in self.head.parameters()) * 0.0
        return self.head(x[mask]).sum()


class TouchedInALoop(Touched):
    def forward(self, x, mask):
        x = self.body(x).sum()
        if not mask.any():
            for p in self.head.parameters():
                x = x + 0 * p.sum()
            return x
        return x + self.head(x).sum()


class WholeTouched(Touched):
    def forward(self, x, mask):
        if not mask.any():
            return 0 * sum(p.sum() for p in self.parameters())
        return self.head(self.body(x)).sum()


class OtherTouched(Touched):
    def forward(self, x, mask):
        if not mask.any():
            return sum(p.sum() for p in self.body.parameters()) * 0.0  # LNT111
        return self.head(x[mask]).sum()


class AskedForItsType(Touched):
    def forward(self, x, mask):
        if not mask.any():
            return x.to(next(self.head.parameters()).dtype).sum()  # LNT111
        return self.head(x[mask]).sum()


def main():
    for cls in (Touched, TouchedInALoop, WholeTouched, OtherTouched, AskedForItsType):
        DistributedDataParallel(cls())
