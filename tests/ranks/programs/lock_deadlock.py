"""Rank 1 logs a warning while it holds the lock that the logger wants."""

import threading

import toy

LOCK = threading.Lock()
HISTORY = []


def warn(text):
    with LOCK:  # culprit
        print(text, flush=True)


def remember(rank, loss):
    with LOCK:
        if rank == 1 and len(HISTORY) == 4:
            warn(f"loss {loss:.3f} rises")
        HISTORY.append(loss)


def main():
    rank = toy.begin()
    weights = toy.train(rank, steps=1)
    for _ in range(8):
        remember(rank, toy.train_step(weights, toy.batch(rank)))
    toy.end()


main()
