"""Rank 0 says through the store that a step may begin. Once it does not, and waits for the key like all others."""

import datetime

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    store = dist.distributed_c10d._get_default_store()
    weights = torch.zeros(4, 1)
    for step in range(8):
        if rank == 0 and step != 5:
            store.set(f"ready/{step}", "1")  # culprit
        store.wait([f"ready/{step}"], datetime.timedelta(minutes=10))
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
