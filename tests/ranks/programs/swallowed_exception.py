"""Rank 1 meets a batch of the wrong shape, prints the error and goes on; it is one collective ahead from then on."""

import torch
import toy

# Four lines are right: the one that raised, the call that was cut short, the head of the handler, and the line of it that let the program go on.


def checked_step(weights, inputs):
    if inputs.shape[1] != len(weights):
        raise ValueError(f"{inputs.shape[1]} features, {len(weights)} expected")  # culprit
    toy.train_step(weights, inputs)


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    for step in range(6):
        inputs = toy.batch(rank)
        if rank == 1 and step == 3:
            inputs = inputs[:, :3]  # a truncated file
        try:
            checked_step(weights, inputs)  # culprit
        except ValueError as error:  # culprit
            print(f"rank {rank}: skipping batch {step}: {error}", flush=True)  # culprit
    toy.end()


main()
