"""Collectives that complete whatever the ranks mean by them: right (healthy), wrong (by MAX, of another type), or wrong and hung later."""

import sys

import torch
import torch.distributed as dist
import toy

how = sys.argv[1]


def metric(rank):
    """Sums a loss; one rank takes the largest instead, in one line or in a branch of its own."""
    loss = torch.full((4,), float(rank))
    if how == "parted" and rank == 1:
        dist.all_reduce(loss, op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(loss, op=dist.ReduceOp.MAX if how != "healthy" and rank == 1 else dist.ReduceOp.SUM)


def counts(rank):
    """Whole numbers, as one rank has them, take as many bytes."""
    values = torch.ones(4, dtype=torch.int32 if how == "wrong" and rank == 2 else torch.float32)
    dist.all_reduce(values)


def what_may_differ(rank, pair):
    """Each group has its own operation and root; so has each call."""
    value = torch.ones(4)
    dist.all_reduce(value)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    dist.all_reduce(value, dist.ReduceOp.MIN)
    dist.reduce(value, dst=2)
    dist.broadcast_object_list([rank], src=1)
    dist.gather(value, [torch.empty(4) for _ in range(3)] if rank == 0 else None, dst=0)
    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(6), op=dist.ReduceOp.MAX)
    if rank < 2:
        dist.all_reduce(value, op=dist.ReduceOp.PRODUCT, group=pair)
        dist.broadcast(value, group_src=1, group=pair)
    else:
        dist.all_reduce(value, op=dist.ReduceOp.MIN, group=dist.new_group([2], use_local_synchronization=True))


def main():
    rank = toy.begin()
    pair = dist.new_group([0, 1])
    toy.train(rank)
    for _ in range(3):
        what_may_differ(rank, pair)
    metric(rank)
    counts(rank)
    if how in ("hang", "parted") and rank == 1:
        dist.broadcast(torch.ones(4), src=1)
    toy.train(rank)
    toy.end()


main()
