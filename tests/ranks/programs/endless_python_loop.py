"""Rank 1 draws distinct negatives from a class that has too few of them."""

import random

import toy


def draw(population, count):
    chosen = set()
    while len(chosen) < count:  # culprit
        chosen.add(random.randrange(population))  # culprit
    return chosen


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(4):
        draw(population=5 if rank == 1 and step == 2 else 50, count=8)
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
