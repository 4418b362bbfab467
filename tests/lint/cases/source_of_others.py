"""The first rank of all as the source in one of several groups, of which it is no member."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def along_one_dimension(x, world):
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
    dist.broadcast(x, src=0, group=mesh["tp"].get_group())  # LNT112
    dist.broadcast(x, src=0, group=mesh.get_group("dp"))  # LNT112


def by_default(x, world):
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
    tp = mesh.get_group(1)
    dist.broadcast(x, 0, group=tp)  # LNT112


def one_of_several(x, rank, world, size):
    mine = None
    for start in range(0, world, size):
        ranks = list(range(start, start + size))
        group = dist.new_group(ranks)
        if rank in ranks:
            mine = group
    box = [x]
    dist.broadcast_object_list(box, src=0, group=mine)  # LNT112
    return box[0]


class Replica:
    def __init__(self, size):
        self.group, _ = dist.new_subgroups(size)

    def gathered(self, part):
        out = [None] * dist.get_world_size(self.group)
        dist.gather_object(part, out, dst=0, group=self.group)  # LNT112
        return out


def shared(box, group):
    dist.broadcast_object_list(box, src=0, group=group)  # LNT112


def share_in_replica(box, world):
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
    shared(box, mesh["tp"].get_group())


# Healthy.


def first_member(x, world):
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
    group = mesh["tp"].get_group()
    dist.broadcast(x, src=dist.get_global_rank(group, 0), group=group)
    dist.broadcast(x, group_src=0, group=group)


def of_all(x, world):
    mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("dp",))
    dist.broadcast(x, src=0, group=mesh["dp"].get_group())
    dist.broadcast(x, src=0, group=mesh.get_group())


def of_one_row(x, world):
    mesh = init_device_mesh("cuda", (1, world), mesh_dim_names=("dp", "tp"))
    dist.broadcast(x, src=0, group=mesh["tp"].get_group())


def first_with_each(x, rank, world):
    for other in range(1, world):
        group = dist.new_group([0, other])
        if rank in (0, other):
            dist.broadcast(x, src=0, group=group)


def first_replica_alone(x, rank, world):
    mesh = init_device_mesh("cuda", (world // 4, 4), mesh_dim_names=("dp", "tp"))
    if rank < 4:
        dist.broadcast(x, src=0, group=mesh["tp"].get_group())


def one_group(x, size):
    group = dist.new_group(list(range(size)))
    dist.broadcast(x, src=0, group=group)
