"""Groups that not every rank makes."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def members_only(rank, ranks):
    if rank in ranks:
        return dist.new_group(ranks)  # LNT104
    return None


def half(rank):
    if rank < 4:
        group = dist.new_group([0, 1, 2, 3])  # LNT104
        dist.all_reduce(None, group=group)


def mesh(rank):
    if rank == 0:
        return init_device_mesh("cuda", (2, 2))  # LNT104
    return None


def all_groups(rank, world):
    mine = None
    for start in range(0, world, 2):
        ranks = [start, start + 1]
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = group
    return mine


def one_each(rank):
    if rank < 2:
        group = dist.new_group([0, 1])
        dist.new_group([2, 3])
    else:
        dist.new_group([0, 1])
        group = dist.new_group([2, 3])
    return group


def only_if_many(world):
    if world > 1:
        return dist.new_group()
    return None


def local_way(rank, ranks):
    if rank in ranks:
        return dist.new_group(ranks, use_local_synchronization=True)
    return None


class Layout:
    def __init__(self, pairs):
        for ranks in pairs:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                self.pair_group = group

    def members(self):
        return dist.get_process_group_ranks(self.pair_group)

    def twin_of_its_own(self):
        return dist.new_group(self.members(), backend="gloo")  # LNT104

    def twin_by_itself(self):
        return dist.new_group(self.members(), use_local_synchronization=True)

    def twin_of_all(self):
        return dist.new_group(dist.get_process_group_ranks(dist.group.WORLD), backend="gloo")


def of_the_members(shard_group):
    members = dist.get_process_group_ranks(shard_group)
    return dist.new_group(members, backend="gloo")  # LNT104


def of_the_members_alone(shard_group):
    members = dist.get_process_group_ranks(shard_group)
    return dist.new_group(members, backend="gloo", use_local_synchronization=True)


def of_the_members_of_all(group):
    members = dist.get_process_group_ranks(group)
    return dist.new_group(members, backend="gloo")
