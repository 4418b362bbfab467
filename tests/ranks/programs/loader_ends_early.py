"""Rank 3 has less data. The loop may be left by a test as well, which came true nowhere."""

import torch
import toy
from torch.utils.data import DataLoader


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    loader = DataLoader(toy.batch(rank, rows=80 if rank < 3 else 72), batch_size=8)
    for inputs in loader:  # culprit
        loss = toy.train_step(weights, inputs)
        if loss < 1e-12:
            break
    toy.end()


main()
