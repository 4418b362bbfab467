"""Rank 0 hands batches on to rank 1, which stops three batches before."""

import torch
import torch.distributed as dist
import toy

BATCHES = 12


def main():
    rank = toy.begin()
    toy.train(rank)
    batches = BATCHES - 3 if rank == 1 else BATCHES
    if rank < 2:
        for _ in range(batches):  # culprit
            if rank == 0:
                dist.send(torch.ones(8), 1)
            else:
                dist.recv(torch.empty(8), 0)
    dist.barrier()
    toy.end()


main()
