"""What looks as if it parted the ranks, and does not; beside it, what does."""

import logging
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)
groups = {}
pairs = {}


@contextmanager
def first_alone(rank):
    if rank not in [-1, 0]:
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()


def loader(path, rank=-1):
    with first_alone(rank):
        return torch.load(path)


def of_one_rank_by_a_constant(path):
    if dist.get_rank() == 0:
        return loader(path)
    return None


def of_all_ranks(path, rank):
    if dist.get_rank() == 0:
        return loader(path, rank)  # LNT101
    return None


def kept(members):
    rank = dist.get_rank()
    ranks = tuple(range(rank // members * members, members))
    if ranks in groups:
        return groups[ranks]
    dist.barrier()
    groups[ranks] = members
    return members


def not_kept(known):
    ranks = tuple(range(dist.get_rank(), 8))
    if ranks in known:
        return  # LNT102
    dist.barrier()
    logger.info(ranks)


def made_at_the_first_call():
    if len(pairs) == 0:
        pairs["all"] = dist.new_group([0, 1])
    return pairs["all"]


def sends(stage, steps):
    for _ in range(steps - dist.get_rank()):
        dist.send(stage, 1, group=made_at_the_first_call())


def makes(stage, steps):
    for _ in range(steps - dist.get_rank()):
        dist.new_group([0, 1])  # LNT110


def refuses(path, state):
    if os.path.isfile(path):
        logger.error("%s should be a folder", path)
        return
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def passes_over(path, state):
    if os.path.isfile(path):
        return  # LNT106
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def brings_all_where_it_is_sharded(model, sharded, save):
    if sharded or dist.get_rank() == 0:
        if sharded:
            dist.barrier()
        save(model)


def alone_where_it_is_distributed(model, world_size):
    if dist.get_rank() == 0 or world_size == 1:
        dist.barrier()  # LNT101


def leaves_after_its_barrier(is_wide):
    if dist.get_rank() > 3:
        dist.barrier()
        return
    if is_wide:
        dist.barrier()
    else:
        dist.barrier()


def leaves_without_a_barrier(is_wide):
    if dist.get_rank() > 3:
        return  # LNT102
    if is_wide:
        dist.barrier()
    else:
        dist.barrier()


def reduce_sum(value):
    value = value.cuda()
    dist.all_reduce(value)
    return value.cpu()


def asks_what_was_reduced(batch_losses):
    total = batch_losses.nonzero()
    reduce_sum(total)
    if len(torch.nonzero(total == 0)) > 0:
        dist.barrier()


def takes_over_what_the_first_says(stop):
    told = [stop if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(told, 0)
    if dist.get_rank() != 0:
        stop = told[0]
    if not stop:
        dist.barrier()


class Communicator:
    def __init__(self, group):
        self.group = group
        self.rank = dist.get_rank(group)

    def barrier(self):
        dist.barrier(group=self.group)


class SingleCommunicator:
    rank = 0

    def barrier(self):
        pass


class Saver:
    def __init__(self, communicator):
        self.communicator = communicator

    def deletes(self, path):
        if self.communicator.rank == 0:
            if not path.exists():
                return  # LNT102
            path.unlink()
        self.communicator.barrier()

    def deletes_in_step(self, path):
        if self.communicator.rank == 0:
            if not path.exists():
                self.communicator.barrier()
                return
            path.unlink()
        self.communicator.barrier()


def topology(is_wide):
    if is_wide:
        return dist.get_rank() // 2, dist.get_world_size() // 2
    return dist.get_rank(), 1


def asks_how_many(is_wide):
    _, count = topology(is_wide)
    if count > 1:
        dist.barrier()


def asks_which(is_wide):
    rank, _ = topology(is_wide)
    if rank > 1:
        dist.barrier()  # LNT101
