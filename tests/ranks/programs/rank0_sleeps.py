"""Rank 0 sleeps before a step, if asked to; started with as many ranks as wanted, however they are started."""

import os
import sys
import time

import toy


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    if rank == 0 and "--sleep" in sys.argv:
        print(os.getpid(), flush=True)
        time.sleep(600)  # culprit
    toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
