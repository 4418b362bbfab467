"""Ranks started by torch.multiprocessing.spawn, with the rank as an argument and none in the environment."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing


def work(rank, world_size, store_path):
    dist.init_process_group("gloo", init_method=f"file://{store_path}", rank=rank, world_size=world_size)
    dist.all_reduce(torch.ones(2))
    if rank == 2:
        dist.barrier()  # culprit
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (4, sys.argv[1]), nprocs=4)
