"""A library on rank 1 ends the process without a word."""

import os

import toy


def check_licence(seats):
    if seats == 0:
        os._exit(3)  # culprit


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(6):
        check_licence(seats=0 if rank == 1 and step == 3 else 1)
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
