"""Fails in the way that its argument names, without unhang: what is left is the log."""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

fault = sys.argv[1]
rank = int(os.environ["RANK"])
if fault == "late_rank" and rank == 1:
    time.sleep(60)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))


def step(number: int, size: int = 8) -> None:
    t = torch.ones(size)
    dist.all_reduce(t)
    print(f"step {number} loss {t[0].item():.3f}", flush=True)


for i in range(3):
    step(i)
if rank == 1:
    if fault == "exception":
        raise ValueError("corrupt sample in shard 7")
    if fault == "early":
        os._exit(
            0
        )  # at once: gloo aborts one exit in three, and what closes first may still be there when the others fail
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGSEGV)
if fault == "size":
    step(3, 8 if rank else 16)
if fault == "other_call":
    dist.broadcast(torch.ones(8), 0) if rank == 1 else dist.all_reduce(torch.ones(8))
if fault == "other_shape":
    dist.all_reduce(torch.ones(8 + (rank == 1)))
if fault == "monitored":
    if rank == 1:
        time.sleep(60)
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=2), wait_all_ranks=True)
for i in range(3, 6):
    step(i)
dist.destroy_process_group()
