"""Recorded by hand: rank 1 goes to sleep instead of coming to the third all_reduce. `late`: installed after the group.

With `healthy` nobody sleeps, with `without` nothing is recorded.
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from unhang.inside.guards.installing import install

folder, how = sys.argv[1:3]
if how in ("early", "healthy"):
    install(folder, stall_after_s=2)
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
if how == "late":
    install(folder, stall_after_s=2)


def prepare() -> None:
    """What only rank 1 does."""
    time.sleep(30)  # FAULT


for step in range(4):
    if step == 2 and dist.get_rank() == 1 and how != "healthy":
        prepare()
    dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
