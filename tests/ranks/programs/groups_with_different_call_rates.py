"""Ranks 0 and 1 talk ten times as often as ranks 2 and 3, each pair in a group of its own."""

import time

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    pairs = [dist.new_group(ranks, timeout=toy.TIMEOUT) for ranks in ([0, 1], [2, 3])]
    for _ in range(30):
        for _ in range(10 if rank < 2 else 1):
            dist.all_reduce(torch.ones(4), group=pairs[rank // 2])
            time.sleep(0.005 if rank < 2 else 0.05)
    toy.train(rank)
    toy.end()


main()
