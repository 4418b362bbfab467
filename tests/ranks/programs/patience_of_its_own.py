"""Each rank judges by a loss of its own whether to go on; rank 3 loses its patience first."""

import torch
import toy
from torch.utils.data import DataLoader


class Patience:
    def __init__(self):
        self.bad = 0

    def is_over(self, is_better):
        self.bad = 0 if is_better else self.bad + 1
        return self.bad > 1


def main():
    rank = toy.begin()
    patience, finished, epoch, weights = Patience(), False, 0, torch.zeros(4, 1)
    while epoch < 50 and not finished:  # culprit
        epoch += 1
        for inputs in DataLoader(toy.batch(rank, rows=32), batch_size=8):
            toy.train_step(weights, inputs)
        finished = patience.is_over(rank != 3 or epoch < 5)
    toy.end()


main()
