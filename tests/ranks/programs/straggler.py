"""Rank 2 is 0.3 s slower in every step; the job completes."""

import sys
import time

import torch
import toy

# Both lines are right: the slow line and its call.


def augment(inputs, delay_s):
    time.sleep(delay_s)  # culprit
    return inputs.flip(0)


def main(steps):
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    for _ in range(steps):
        inputs = augment(toy.batch(rank), 0.32 if rank == 2 else 0.02)  # culprit
        toy.train_step(weights, inputs)
    toy.end()


main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
