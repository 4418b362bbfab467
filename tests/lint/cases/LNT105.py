"""Branches that make other collectives."""

import torch.distributed as dist


def other_operation(rank, x):
    if rank == 0:
        dist.broadcast(x, 0)  # LNT105
    else:
        dist.all_reduce(x)


def one_is_missing(rank, x):
    if rank == 0:
        dist.broadcast(x, 0)
        dist.barrier()  # LNT101
    else:
        dist.broadcast(x, 0)


def alike(rank, x):
    if rank == 0:
        dist.gather(x, [x, x])
    else:
        dist.gather(x)
    dist.barrier()
