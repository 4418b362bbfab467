"""Rank 2 cleans a text with a pattern that backtracks for ever; the interpreter lock is held meanwhile."""

import re

import toy

WORDS = re.compile(r"(\w+\s?)+$")


def clean(text):
    return bool(WORDS.match(text))  # culprit


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    for step in range(4):
        clean("x" * 60 + "!" if rank == 2 and step == 2 else "some words")
        toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
