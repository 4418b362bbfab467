"""Rank 0 writes a checkpoint to slow storage while the others wait at the barrier."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
import toy

# Both lines are right: the call under the condition, and the place where rank 0 is.


def save(weights, path):
    torch.save(weights, path)
    for _ in range(400):
        with path.open("ab") as file:
            file.write(b"shard")
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
