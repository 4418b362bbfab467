"""Rank 1 drops a probe from its list, and goes through the others; its peers still have it."""

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    probes = [f"probe {i}" for i in range(5)]
    for epoch in range(4):
        toy.train(rank)
        if rank == 1 and epoch == 2:  # culprit
            probes.pop()
        for _ in probes:
            dist.all_reduce(torch.ones(8))
    toy.end()


main()
