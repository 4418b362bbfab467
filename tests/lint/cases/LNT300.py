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


def gathered(x):
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def gathered_by_size(x):
    count = torch.tensor([x.shape[0]])
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    most = int(torch.cat(counts).max())
    full = x
    if x.shape[0] < most:
        full = torch.cat([x, torch.zeros(most - x.shape[0])])
    parts = [torch.zeros_like(full) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, full)
    return parts


def what_is_left(x):
    return gathered(x[x > 0.5])  # LNT303


def what_is_left_by_size(x):
    return gathered_by_size(x[x > 0.5])


def the_first(x):
    return gathered(x[:3])
