"""Rank 1 raises in the first attempt. After the restart the job recovers, hangs, or raises again, as it is told."""

import os
import sys
import time

import toy

(THEN,) = sys.argv[1:]
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def load(rank, step):
    if rank == 1 and step == 3 and (ATTEMPT == 0 or THEN == "raises"):
        raise OSError("stale file handle")  # culprit
    if rank == 2 and step == 4 and ATTEMPT == 1 and THEN == "hangs":
        time.sleep(600)
    return toy.batch(rank)


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        toy.train_step(weights, load(rank, step))
    toy.end()


main()
