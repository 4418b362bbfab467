"""Rank 0 says through the store where the best weights are, and says nothing where they got no better; the others wait for that."""

import torch
import torch.distributed as dist
import toy


class Best:
    def __init__(self, rank):
        self.rank, self.least = rank, float("inf")
        self.store = dist.distributed_c10d._get_default_store()

    def update(self, step, loss):
        if self.rank == 0:
            if loss < self.least:
                self.least = loss
                self.store.set(f"best/{step}", str(loss))  # culprit
            return
        self.least = float(self.store.get(f"best/{step}"))


def main():
    rank = toy.begin()
    best, weights = Best(rank), torch.zeros(4, 1)
    for step in range(8):
        loss = toy.train_step(weights, toy.batch(rank))
        best.update(step, loss if step != 5 else 2 * loss + 1)
    toy.end()


main()
