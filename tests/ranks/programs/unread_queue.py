"""The ranks put their results into a queue, and the parent waits for them before it reads: that of rank 0 does not fit into the pipe."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing


def work(rank, world_size, store_path, results):
    dist.init_process_group("gloo", init_method=f"file://{store_path}", rank=rank, world_size=world_size)
    dist.all_reduce(torch.ones(2))
    results.put(bytes(10 if rank else 1_000_000))
    dist.destroy_process_group()


if __name__ == "__main__":
    results = torch.multiprocessing.get_context("spawn").Queue()
    torch.multiprocessing.spawn(work, (2, sys.argv[1], results), nprocs=2)  # culprit
    print(sum(len(results.get()) for _ in range(2)))
