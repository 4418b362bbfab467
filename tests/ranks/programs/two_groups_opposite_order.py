"""Rank 3 reduces over its groups in another order than the others: each waits in the call that the other makes later."""

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    everyone = list(range(dist.get_world_size()))
    groups = {name: dist.new_group(everyone, group_desc=name, timeout=toy.TIMEOUT) for name in ("metrics", "gradients")}
    toy.train(rank)
    order = sorted(groups) if rank == 3 else list(groups)
    for name in order:
        dist.all_reduce(torch.ones(4), group=groups[name])  # culprit
    toy.end()


main()
