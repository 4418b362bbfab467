"""Rank 2 raises on a corrupt record; the others see a closed connection."""

import toy


def decode(record):
    if len(record) < 4:
        raise ValueError(f"record too short: {record!r}")  # culprit
    return record


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        decode(b"ab" if rank == 2 and step == 3 else b"abcd")
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
