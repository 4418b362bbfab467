"""Pairs of ranks pass a tensor on; rank 1 once sends to rank 0, from which it always received."""

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    for step in range(8):
        part = torch.ones(4)
        if rank % 2 == 0:
            dist.send(part, rank + 1)
        elif rank == 1 and step == 5:
            dist.send(part, rank - 1)  # culprit
        else:
            dist.recv(part, rank - 1)
    toy.end()


main()
