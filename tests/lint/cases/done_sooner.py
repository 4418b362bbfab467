"""Ranks that have less to do take part in a loop of their own until all are done; or they do not."""

import torch
import torch.distributed as dist


def turn(x, count):
    most = torch.tensor([count])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if most.item():
        dist.all_gather_into_tensor(x, x)
    return bool(most.item())


def with_the_others(items, x):
    for item in items[dist.get_rank() :: dist.get_world_size()]:
        turn(x, len(item))
    while turn(x, 0):
        pass


def without_them(items, x):
    for item in items[dist.get_rank() :: dist.get_world_size()]:
        turn(x, len(item))  # LNT110
    dist.barrier()


def in_a_loop_of_other_calls(items, x):
    for item in items[dist.get_rank() :: dist.get_world_size()]:
        turn(x, len(item))  # LNT110
    while x.sum() > 0:
        dist.barrier()
        x -= 1
