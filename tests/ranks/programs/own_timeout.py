"""Rank 2 works alone for longer than the process group's own limit, which ends the job: the others report it, and failed at nothing."""

import datetime
import time

import toy

toy.TIMEOUT = datetime.timedelta(seconds=3)


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        if rank == 2 and step == 3:
            time.sleep(600)  # culprit
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
