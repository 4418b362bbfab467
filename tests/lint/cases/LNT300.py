"""Tensors and data."""

import torch
import torch.distributed as dist
from datetime import timedelta
from torch.utils.data import DataLoader


def ragged(x, mask, parts):
    dist.all_gather(parts, torch.nonzero(x))  # LNT303
    kept = x[mask]
    dist.all_gather(parts, kept.float())  # LNT303
    dist.all_gather_object(parts, kept)
    dist.all_gather(parts, x[:3])


def not_dense(x):
    dist.all_reduce(x.t())  # LNT304
    column = x[:, 0]
    dist.all_reduce(column)  # LNT304
    dist.broadcast(x.expand(3, 4), 0)  # LNT304
    dist.all_reduce(x.t().contiguous())
    dist.all_reduce(x[0])
    dist.all_reduce(x[:3])


def dropped(x):
    dist.all_reduce(x, async_op=True)  # LNT305
    work = dist.all_reduce(x, async_op=True)
    work.wait()


def starts(items):
    dist.init_process_group("nccl", timeout=timedelta(minutes=2))
    DataLoader(items, timeout=120)  # LNT306
    DataLoader(items, timeout=30)


def shares(shard, rank, world):
    while True:  # LNT307
        yield from shard[rank::world]


def shares_modulo(shard, rank, world):
    first = rank % len(shard)
    while True:
        yield from shard[first::world]
