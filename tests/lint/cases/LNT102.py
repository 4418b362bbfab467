"""Ranks that leave before a collective."""

import sys

import torch.distributed as dist


def returns(rank, x):
    if rank != 0:
        return  # LNT102
    print(x)
    dist.barrier()


def continues(rank, batches):
    for x in batches:
        if rank > 0:
            continue  # LNT102
        dist.all_reduce(x)


def breaks(rank, batches):
    for step, x in enumerate(batches):
        dist.all_reduce(x)
        if rank == 0 and step > 10:
            break  # LNT102


def nested(rank, x, verbose):
    if rank == 0:
        if verbose:
            return None  # LNT102
    dist.all_reduce(x)
    return x


def decides_alone(rank, batches, evaluate):
    stop = False
    for x in batches:
        dist.all_reduce(x)
        if rank == 0:
            stop = evaluate(x) > 3
        if stop:
            break  # LNT102


# Quiet.


def makes_it_too(rank, x):
    if rank != 0:
        dist.barrier()
        return None
    x = open("x").read()
    dist.barrier()
    return x


def nothing_follows(rank, x):
    dist.all_reduce(x)
    if rank != 0:
        return
    print(x)


def raises(rank, x):
    if rank != 0:
        raise ValueError(x)
    dist.all_reduce(x)


def ends(rank, x):
    if rank != 0:
        sys.exit(1)
    dist.all_reduce(x)


def together(rank, batches, evaluate):
    for x in batches:
        dist.all_reduce(x)
        stop = [evaluate(x) if rank == 0 else None]
        dist.broadcast_object_list(stop, src=0)
        if stop[0]:
            break


def both_return(rank, x):
    if rank == 0:
        return dist.broadcast(x, 0)
    else:
        return dist.broadcast(x, 0)


def own_loop(rank, x):
    for name in ("a", "b"):
        if rank != 0:
            continue
        print(name)
    dist.all_reduce(x)
