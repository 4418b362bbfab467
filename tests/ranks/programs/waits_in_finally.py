"""Rank 1 meets a corrupt sample; its exception passes a `finally` with a barrier, in which no other rank is."""

import torch
import torch.distributed as dist
import toy


def checked(rank, step):
    if rank == 1 and step == 4:
        raise ValueError("sample 1234 is corrupt")  # culprit
    return toy.batch(rank)


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    try:
        for step in range(8):
            toy.train_step(weights, checked(rank, step))
    finally:
        dist.barrier()
    toy.end()


main()
