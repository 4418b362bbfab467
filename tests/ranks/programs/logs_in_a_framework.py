"""A step inside a framework's loop: rank 1 does not log a loss that is no number, the calls after it look alike."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "site-packages"))

import toy
from loops import Module, Trainer


class Training(Module):
    def __init__(self, rank):
        self.rank = rank

    def training_step(self, step):
        loss = float("nan") if self.rank == 1 and step == 12 else 1.0
        if loss == loss:
            self.log(loss)  # culprit


def main():
    rank = toy.begin()
    Trainer().fit(Training(rank), 30)
    toy.end()


main()
