"""Rank 0 gives up its process group for an export that it makes alone; the others still have a call to make."""

import time

import torch
import torch.distributed as dist


def export() -> None:
    dist.destroy_process_group()  # culprit
    time.sleep(60)


def main() -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        export()
        return
    time.sleep(0.3)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


main()
