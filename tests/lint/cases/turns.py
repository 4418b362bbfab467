"""Batches are dealt out to all ranks, while some of them exchange parts of each batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Grid:
    def __init__(self, size):
        world, rank = dist.get_world_size(), dist.get_rank()
        self.everyone = dist.new_group(list(range(world)))
        for first in range(0, world, size):
            members = list(range(first, first + size))
            group = dist.new_group(members)
            if rank in members:
                self.block = group
        for first in range(size):
            members = list(range(first, world, size))
            group = dist.new_group(members)
            if rank in members:
                self.column = group

    def of_everyone(self):
        return dist.get_rank(self.everyone), dist.get_world_size(self.everyone)

    def of_column(self):
        return dist.get_rank(self.column), dist.get_world_size(self.column)


class Exchanged(nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.group = grid.block

    def forward(self, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=self.group)
        return out


def by_all(model, tokenizer, rows, grid):
    rank, size = grid.of_everyone()
    for i, row in enumerate(rows):
        if i % size != rank:
            continue  # LNT102
        model(tokenizer(row))


def by_all_at_their_turn(model, rows):
    for i, row in enumerate(rows):
        if i % dist.get_world_size() == dist.get_rank():
            model(row)  # LNT103


def by_column(model, tokenizer, rows, grid):
    rank, size = grid.of_column()
    for i, row in enumerate(rows):
        if i % size != rank:
            continue
        model(tokenizer(row))


def by_first_of_all(model, rows, size):
    if dist.get_rank() < size:  # those of the first block, perhaps
        for row in rows:
            model(row)


def sums_in_turns(rows, x, block):
    rank, world = dist.get_rank(), dist.get_world_size()
    for i, row in enumerate(rows):
        if i % world == rank:
            dist.all_reduce(x * row, group=block)  # LNT101


def sums_by_members(rows, x, block, size):
    rank = dist.get_rank()
    for row in rows:
        if rank % size == 0:
            dist.all_reduce(x * row, group=block)


def second_of_two_is_wrapped(clean, model, rows):
    for i, row in enumerate(rows):
        if i % dist.get_world_size() != dist.get_rank():
            continue  # LNT102
        model(clean(row)).sum().backward()


def main(tokenizer, net, rows):
    grid = Grid(4)
    by_all(Exchanged(grid), tokenizer, rows, grid)
    by_all_at_their_turn(Exchanged(grid), rows)
    by_column(Exchanged(grid), tokenizer, rows, grid)
    by_first_of_all(Exchanged(grid), rows, 4)
    second_of_two_is_wrapped(str.strip, FSDP(net), rows)
