"""Rank 1 looks for a file again and again, which rank 0 writes behind the barrier for which rank 1 does not come."""

import os
import time

import torch.distributed as dist
import toy


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.1)  # culprit


def main():
    rank = toy.begin()
    toy.train(rank)
    if rank == 1:
        wait_for("weights.done")
    dist.barrier()
    if rank == 0:
        open("weights.done", "w").close()
    toy.end()


main()
