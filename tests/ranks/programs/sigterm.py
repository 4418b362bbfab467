"""Rank 1 ends itself by SIGTERM in the middle of training; the launcher then sends the same signal to all others."""

import os
import signal
import time

import toy


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGTERM)  # culprit
            time.sleep(5)
        toy.train_step(weights, toy.batch(rank))  # culprit
    toy.end()


main()
