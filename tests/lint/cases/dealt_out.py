"""Shares that are dealt out: how many rounds a rank makes, and what evens them before."""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


class Actor:
    def __init__(self, model, size):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = model
        self.size = size
        fully_shard(self.model)

    def step(self, items):
        mine = items[self.rank :: self.world]
        for n in range(-(-len(mine) // self.size)):
            self.model(mine[n * self.size : (n + 1) * self.size]).sum().backward()  # LNT110


def given_out(items):
    mine = items[dist.get_rank() :: dist.get_world_size()]
    rounds = (len(mine) + 3) // 4
    for n in range(rounds):
        dist.all_reduce(mine[n])  # LNT110


# Healthy.


def refused(items):
    world = dist.get_world_size()
    if len(items) % world:
        raise ValueError("a rest")
    for one in items[dist.get_rank() :: world]:
        dist.all_reduce(one)


def asserted(items):
    world = dist.get_world_size()
    assert len(items) % world == 0
    for one in items[dist.get_rank() :: world]:
        dist.all_reduce(one)


def filled(items, world):
    if len(items) % world:
        items = items + items[-1:] * (-len(items) % world)
    return items


def checked(items, world):
    if len(items) % world != 0:
        raise ValueError("a rest")
    return items


def dealt(items, world):
    for one in items[dist.get_rank() :: world]:
        dist.all_reduce(one)


def dealt_if_even(items, world):
    for one in items[dist.get_rank() :: world]:
        dist.all_reduce(one)


def whole(items, world):
    items = filled(items, world)
    dealt(items, world)
    dealt_if_even(checked(items, world), world)
    for one in filled(items, world)[dist.get_rank() :: world]:
        dist.all_reduce(one)


class OfSome:
    """Healthy: the others are no members of the group over which it is sharded."""

    def __init__(self, model, group):
        mesh = DeviceMesh.from_group(group, "cuda")
        self.model = model
        fully_shard(self.model, mesh=mesh)

    def run(self, batch):
        self.model(batch).sum().backward()


def with_a_judge(model, batch, rank, judge):
    group = dist.new_group(list(range(judge)))
    some = OfSome(model, group)
    if rank == judge:
        print("waits for the others")
    else:
        some.run(batch)
    dist.barrier()
