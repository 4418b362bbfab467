"""What this rank picks of all: some ranks may have nothing, and what they do then the others do not."""

import torch.distributed as dist


def of_all(numbers):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [n for i, n in enumerate(numbers) if i % world == rank]
    if not mine:
        dist.barrier()  # LNT101
    else:
        print(mine)
    dist.barrier()


def of_one_group(sizes, group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    mine = {n for i, n in enumerate(sizes.values()) if i % world == rank}
    part = {key: n for key, n in sizes.items() if n in mine}
    if not part:
        dist.barrier(group=group)  # LNT101
    dist.barrier(group=group)


def leaves(items):
    mine = items[dist.get_rank() :: dist.get_world_size()]
    if len(mine) == 0:
        return  # LNT102
    dist.barrier()


def of_another_group(sizes, group, others):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    mine = [n for i, n in enumerate(sizes) if i % world == rank]
    if not mine:
        dist.barrier(group=others)
    dist.barrier(group=others)


def says_so_alone(numbers):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [n for i, n in enumerate(numbers) if i % world == rank]
    if not mine:
        print("nothing to do")
    dist.barrier()


def all_have_none(numbers, wanted):
    left = [n for n in numbers if n in wanted]
    if not left:
        return
    dist.barrier()
