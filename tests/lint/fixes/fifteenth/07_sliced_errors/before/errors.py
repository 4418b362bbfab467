import torch
from torchmetrics import Metric


def distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


class TokenErrors(Metric):
    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("wrong", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("length", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, guesses, truths):
        for guess, truth in zip(guesses, truths):
            self.wrong += distance(guess, truth)
            self.length += len(truth)

    def compute(self):
        return self.wrong / self.length, self.wrong, self.length
