"""Metrics that the project writes itself: they meet where they are computed."""

import torch
import torch.distributed as dist
from torchmetrics import Metric


class Errors(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("wrong", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, guess, truth):
        self.wrong += (guess != truth).sum()

    def compute(self):
        return self.wrong


class Counter:
    def compute(self):
        return 0


def told(loader):
    errors, counter = Errors(), Counter()
    for guess, truth in loader:
        errors.update(guess, truth)
    if dist.get_rank() == 0:
        print(errors.compute())  # LNT103
    wrong = errors.compute()
    if dist.get_rank() == 0:
        print(wrong, counter.compute())
