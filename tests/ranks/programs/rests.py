"""Rank 0 rests in the middle of the training, for as long as nobody ends the job; the others wait for it."""

import os
import sys
import time

import torch
import torch.distributed as dist
import toy


def rest():
    print("resting under", os.environ.get("UNHANG_RUN_DIR"), flush=True)
    time.sleep(3600)  # rest


def main():
    rank = toy.begin()
    for step in range(20):
        if rank == 0 and step == 11:
            rest()
        dist.all_reduce(torch.ones(3))
    toy.end()


if "deaf" in sys.argv:
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
main()
