"""Ranks 0 to 2 create a group for themselves. Every rank must take part in that, members or not.

That alone hangs nothing since torch 2.1, but the ranks now count their groups differently, and the next group never forms.
"""

import torch
import torch.distributed as dist
import toy

TRAINERS = [0, 1, 2]


def main():
    rank = toy.begin()
    toy.train(rank)
    if rank in TRAINERS:
        trainers = dist.new_group(TRAINERS)  # culprit
        dist.all_reduce(torch.ones(1), group=trainers)
    metrics = dist.new_group()
    dist.all_reduce(torch.ones(1), group=metrics)
    toy.end()


main()
