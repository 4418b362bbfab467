"""Spawns its ranks again after a failure. Rank 1 raises in the first attempt; in the second one rank 2 may wait for ever."""

import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing


def work(rank, world_size, store_path, attempt, then):
    dist.init_process_group("gloo", init_method=f"file://{store_path}{attempt}", rank=rank, world_size=world_size)
    for step in range(8):
        if attempt == 0 and rank == 1 and step == 4:
            raise OSError("stale file handle")
        if attempt == 1 and rank == 2 and step == 4 and then == "hangs":
            time.sleep(600)  # culprit
        dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    for attempt in range(2):
        try:
            torch.multiprocessing.spawn(work, (3, sys.argv[1], attempt, sys.argv[2]), nprocs=3)
            break
        except torch.multiprocessing.ProcessRaisedException as error:
            print(f"attempt {attempt} failed: {error}")
