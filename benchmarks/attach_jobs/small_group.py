"""Ranks 0 and 1 talk in a group of their own, and meet the others now and then."""

import time

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, group = dist.get_rank(), dist.new_group([0, 1])
    while True:
        for _ in range(20):
            if rank < 2:
                dist.all_reduce(torch.ones(4), group=group)
            time.sleep(0.1)
        dist.barrier()


main()
