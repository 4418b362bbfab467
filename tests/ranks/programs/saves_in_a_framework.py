"""What a framework asks comes out differently on rank 2: below one line of the program two ways lead through the library."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages"))

import toy
from loops import Module, Trainer


class Training(Module):
    def __init__(self, rank):
        self.rank = rank

    def training_step(self, step):
        self.log(step)

    def is_worth_saving(self, step):
        return not (self.rank == 2 and step == 14)  # culprit


def main():
    rank = toy.begin()
    Trainer().fit(Training(rank), 30)
    toy.end()


main()
