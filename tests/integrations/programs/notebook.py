"""As in a notebook: one process installs the recorder, and starts the ranks later. Rank 1 sleeps instead of coming."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from unhang.inside.guards.installing import install

PORT_FILE = f"file://{sys.argv[1]}/meeting"


def worker(rank: int) -> None:
    dist.init_process_group("gloo", init_method=PORT_FILE, rank=rank, world_size=2, timeout=timedelta(seconds=8))
    dist.all_reduce(torch.ones(2))
    if rank == 1:
        time.sleep(30)  # FAULT
    dist.all_reduce(torch.ones(2))


if __name__ == "__main__":
    install(stall_after_s="2s")
    mp.start_processes(worker, nprocs=2, start_method=sys.argv[2])
