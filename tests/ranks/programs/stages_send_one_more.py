"""Two stages of a pipeline, all forward and then all backward. At the third step the first one has a micro-batch more than the second expects."""

import torch
import torch.distributed as dist
import toy


def step(rank, micro):
    value = torch.ones(1 << 16)
    if rank == 0:
        for _ in range(micro):  # culprit
            dist.send(value, 1)  # culprit
        for _ in range(micro):
            dist.recv(value, 1)
    else:
        for _ in range(micro):  # culprit
            dist.recv(value, 0)  # culprit
        for _ in range(micro):
            dist.send(value, 0)


def main():
    rank = toy.begin()
    dist.barrier()
    for n in range(6):
        step(rank, 4 + (n == 2 and rank == 0))
    toy.end()


main()
