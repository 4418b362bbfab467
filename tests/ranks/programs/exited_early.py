"""Rank 3 finds nothing left to do and leaves with exit code 0."""

import sys

import toy


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        shard = [] if rank == 3 and step == 3 else [step]
        if not shard:
            sys.exit(0)  # culprit
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
