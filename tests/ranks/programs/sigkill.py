"""Rank 2 is killed in the middle of training: no exception, no exit handler."""

import os
import signal

import toy

# Nothing in a killed process can say where it was, so the last call that is known is right, too.


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        if rank == 2 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)  # culprit
        toy.train_step(weights, toy.batch(rank))  # culprit
    toy.end()


main()
