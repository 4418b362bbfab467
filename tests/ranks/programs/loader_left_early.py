"""Rank 2 has used up its time before its data, and leaves the loop over its loader alone."""

import time

import torch
import toy
from torch.utils.data import DataLoader


def main():
    rank = toy.begin()
    limit, began = 0.3 if rank == 2 else 60.0, time.monotonic()
    weights = torch.zeros(4, 1)
    for inputs in DataLoader(toy.batch(rank, rows=800), batch_size=8):
        toy.train_step(weights, inputs)
        time.sleep(0.02)
        if time.monotonic() - began > limit:  # culprit
            break
    toy.end()


main()
