"""A healthy job: rank 0 prepares data for some seconds, in bursts, before the first barrier; the group's limit is two hours.

With "seen" it goes on until `unhang run` has noticed that the others wait (a minute at most), and a second longer.
"""

import os
import sys
import time

import torch.distributed as dist
import toy


def prepare(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(100_000))
        time.sleep(0.02)


def prepare_until_seen():
    verdict, until = os.path.join(os.environ["UNHANG_RUN_DIR"], "verdict.json"), time.monotonic() + 60
    while not os.path.exists(verdict) and time.monotonic() < until:
        prepare(0.2)
    prepare(1)


def main():
    rank = toy.begin()
    if rank == 0:
        prepare_until_seen() if sys.argv[1] == "seen" else prepare(float(sys.argv[1]))
    dist.barrier()
    toy.train(rank, steps=5)
    toy.end()


main()
