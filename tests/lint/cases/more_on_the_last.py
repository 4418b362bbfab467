"""The last rank takes what is left over, and all go round as often as they would on the average."""

import math

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def part_of(items, rank, world):
    each = len(items) // world
    first = each * rank
    last = len(items) if rank == world - 1 else first + each
    return items[first:last]


def rounded_up_part_of(items, rank, world):
    each = math.ceil(len(items) / world)
    first = each * rank
    last = len(items) if rank == world - 1 else first + each
    return items[first:last]


class Steps:
    """As many batches as there are, and more up to a number."""

    def __init__(self, items, size, count):
        self.items, self.size, self.count = items, size, count

    def __len__(self):
        return self.count

    def __iter__(self):
        made = 0
        for first in range(0, len(self.items), self.size):
            batch = padded(self.items[first : first + self.size])
            made += 1
            yield batch
        while made < self.count:
            made += 1
            yield batch


class Cut(Steps):
    """Never more than the number."""

    def __iter__(self):
        made = 0
        while made < self.count:
            for first in range(0, len(self.items), self.size):
                if made == self.count:
                    return
                made += 1
                yield padded(self.items[first : first + self.size])


def padded(items):
    return items + [0] * (8 - len(items))


def on_the_average(net, items, size):
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = math.ceil(len(items) / size)
    model = DDP(net)
    for batch in Steps(part_of(items, rank, world), size, math.ceil(batches / world)):
        model(batch).sum().backward()  # LNT110


def of_the_largest(net, items, size):
    rank, world = dist.get_rank(), dist.get_world_size()
    largest = len(items) // world + len(items) % world
    model = DDP(net)
    for batch in Steps(part_of(items, rank, world), size, math.ceil(largest / size)):
        model(batch).sum().backward()


def where_the_last_has_less(net, items, size):
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = math.ceil(len(items) / size)
    model = DDP(net)
    for batch in Steps(rounded_up_part_of(items, rank, world), size, math.ceil(batches / world)):
        model(batch).sum().backward()


def where_more_is_cut(net, items, size):
    rank, world = dist.get_rank(), dist.get_world_size()
    batches = math.ceil(len(items) / size)
    model = DDP(net)
    for batch in Cut(part_of(items, rank, world), size, math.ceil(batches / world)):
        model(batch).sum().backward()
