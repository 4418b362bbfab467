"""Trains for as many seconds as it is told, a few steps each second; started with as many ranks as wanted."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    Path(f"rank{rank}_steps").touch()
    for _ in range(int(sys.argv[1]) * 5):
        toy.train_step(weights, toy.batch(rank))
        time.sleep(0.2)
    dist.barrier()
    toy.end()


main()
