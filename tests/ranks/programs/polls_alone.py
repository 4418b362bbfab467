"""Rank 3 asks, again and again, for a key that rank 0 was to set; all others have ended."""

import time

import torch
import torch.distributed as dist


def through(store: dist.Store) -> bool:
    return bool(store.check(["through"]))


def main() -> None:
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    store = dist.FileStore("notes")
    dist.barrier()
    if dist.get_rank() == 3:
        while not through(store):  # culprit
            time.sleep(0.1)  # culprit


main()
