"""The source or destination of a collective is this rank's own number."""

import os

import torch.distributed as dist


def own(x):
    rank = dist.get_rank()
    dist.broadcast(x, src=rank)  # LNT112


def own_on_its_node(objects):
    dist.broadcast_object_list(objects, src=int(os.environ["LOCAL_RANK"]))  # LNT112


def agreed(x):
    dist.broadcast(x, src=0)


def each_in_turn(x, world):
    for rank in range(world):
        dist.broadcast(x, src=rank)


def of_a_part(x, group):
    dist.broadcast(x, src=dist.get_rank(), group=group)


def sends_and_receives(x, rank):
    if rank == 0:
        dist.broadcast(x, src=rank)
    else:
        dist.broadcast(x, src=0)
