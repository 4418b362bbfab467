"""Starting without a limit, without a record; loading to another rank's device."""

from datetime import timedelta

import torch
import torch.distributed as dist


def start():
    dist.init_process_group("gloo")  # LNT402
    torch.load("x.pt")  # LNT408
    torch.load("x.pt", map_location="cpu")


def with_limit():
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
