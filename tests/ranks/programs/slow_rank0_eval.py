"""Rank 0 evaluates alone on the whole validation set; the others have gone on to the next step."""

import time

import torch
import torch.distributed as dist
import toy

# Both lines are right: the call under the condition, and the loop in which rank 0 is.


@torch.no_grad()
def evaluate(weights):
    errors = []
    for seed in range(4000):
        rows = toy.batch(seed, rows=64)
        errors.append((rows @ weights - rows.sum(1, keepdim=True)).abs().mean().item())
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
