"""Ranks meet in the store; rank 1 counts one meeting too many, so that all ask for keys that nobody sets."""

import time

import torch
import torch.distributed as dist


def meet(store: dist.Store, number: int) -> None:
    store.set(f"here/{number}/{dist.get_rank()}", "1")
    while not store.check([f"here/{number}/{r}" for r in range(dist.get_world_size())]):  # culprit
        time.sleep(0.05)  # culprit


def main() -> None:
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    for number in range(6):
        dist.all_reduce(torch.ones(1))
        meet(store, number + (dist.get_rank() == 1 and number == 4))
    dist.barrier()


main()
