"""All ranks compute for six seconds at the same place, between two collectives."""

import time

import toy


def build_index():
    time.sleep(6)


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    build_index()
    toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
