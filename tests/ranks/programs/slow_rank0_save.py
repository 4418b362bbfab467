"""Rank 0 writes a checkpoint to slow storage while the others wait at the barrier."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy

# Right are the call under the condition, and every line on which rank 0 may be meanwhile.


def save(weights, path):
    torch.save(weights, path)
    for _ in range(400):
        with path.open("ab") as file:  # culprit
            file.write(b"shard")  # culprit
        time.sleep(0.1)  # culprit


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    if rank == 0:
        save(weights, Path("checkpoint.pt"))  # culprit
    dist.barrier()
    toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
