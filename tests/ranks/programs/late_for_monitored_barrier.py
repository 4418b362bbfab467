"""Rank 1 sleeps before a monitored barrier, which no flight recorder shows."""

import datetime
import time

import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    toy.train(rank)
    if rank == 1:
        time.sleep(600)  # culprit
    dist.monitored_barrier(timeout=datetime.timedelta(minutes=8))
    toy.end()


main()
