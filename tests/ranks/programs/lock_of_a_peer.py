"""Rank 0 keeps the lock on a file, and waits for rank 2 in a collective, which waits for the lock."""

import fcntl
import time

import toy


def main():
    rank = toy.begin()
    toy.train(rank)
    with open("index.lock", "w") as file:
        if rank == 0:
            fcntl.flock(file, fcntl.LOCK_EX)
        if rank == 2:
            time.sleep(0.5)
            fcntl.flock(file, fcntl.LOCK_EX)  # culprit
        toy.train(rank)
    toy.end()


main()
