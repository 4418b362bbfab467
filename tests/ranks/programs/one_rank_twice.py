"""A start script gives rank 1 to two processes: nobody is rank 3."""

import os

if os.environ["RANK"] == "3":
    os.environ["RANK"] = "1"  # culprit

import toy


def main():
    rank = toy.begin()
    toy.train(rank)
    toy.end()


main()
