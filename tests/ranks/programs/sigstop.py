"""Rank 1 is stopped, as by a debugger or a frozen container."""

import os
import signal

import toy


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        if rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGSTOP)  # culprit
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
