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


def from_what_it_says(items, rank, world):
    base, rest = divmod(len(items), world)
    start = rank * base + min(rank, rest)
    return items[start : start + base + (rank < rest)]


def leaves_without_an_item(items, model):
    own = from_what_it_says(items, dist.get_rank(), dist.get_world_size())
    if not own:
        return None  # LNT102
    total = model(own)
    dist.all_reduce(total)
    return total


def goes_on_without_an_item(items, model):
    own = from_what_it_says(items, dist.get_rank(), dist.get_world_size())
    total = model(own) if own else torch.zeros(1)
    dist.all_reduce(total)
    return total
