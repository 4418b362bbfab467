"""Rank 0 alone reports the evaluation, and the report averages over all ranks, three calls below the condition."""

import torch
import torch.distributed as dist
import toy


def mean_over_ranks(value):
    total = torch.tensor([value])
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def describe(losses):
    return f"evaluation loss {mean_over_ranks(sum(losses) / len(losses)):.3f}"


def evaluate(weights, inputs):
    losses = [(row @ weights - row.sum()).square().item() for row in inputs]
    if dist.get_rank() == 0:
        print(describe(losses), flush=True)  # culprit
    return losses


def main():
    rank = toy.begin()
    weights = toy.train(rank)
    evaluate(weights.detach(), toy.batch(rank))
    dist.barrier()
    toy.train_step(weights, toy.batch(rank))
    toy.end()


main()
