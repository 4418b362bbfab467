"""Rank 0 evaluates alone on the whole validation set; the others have gone on to the next step."""

import time

import torch
import torch.distributed as dist
import toy

# Right are the call under the condition, and every line on which rank 0 may be meanwhile.


@torch.no_grad()
def evaluate(weights):
    errors = []
    for seed in range(4000):
        rows = toy.batch(seed, rows=64)  # culprit
        errors.append((rows @ weights - rows.sum(1, keepdim=True)).abs().mean().item())  # culprit
        time.sleep(0.01)  # culprit
    return sum(errors) / len(errors)


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    if dist.get_rank() == 0:
        print(f"error {evaluate(weights):.3f}", flush=True)  # culprit
    toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
