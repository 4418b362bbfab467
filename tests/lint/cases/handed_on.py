"""What is handed on from stage to stage: one of them alone waits for the others."""

import torch
import torch.distributed as dist


class Stages:
    def __init__(self, group, count):
        self.group, self.count = group, count
        self.stage = dist.get_rank(group)

    @property
    def first(self):
        return self.stage == 0

    @property
    def last(self):
        return self.stage == self.count - 1

    def receive(self):
        hidden = torch.empty(8)
        dist.recv(hidden, self.stage - 1, group=self.group)
        return hidden

    def send(self, hidden):
        dist.send(hidden, self.stage + 1, group=self.group)


def is_last_rank():
    return dist.get_rank() == dist.get_world_size() - 1


def forward_only(stages, batches):
    hidden = next(batches) if stages.first else stages.receive()
    if not stages.last:
        stages.send(hidden)
    return hidden


def evaluates(stages, batches, shows):
    if shows is not None and is_last_rank():
        forward_only(stages, batches)  # LNT101
    dist.barrier()


def evaluates_on_all(stages, batches, shows):
    made = forward_only(stages, batches)
    if shows is not None and is_last_rank():
        shows(made)
    dist.barrier()


def takes_part_on_both_sides(stages, batches):
    if dist.get_rank() == 0:
        forward_only(stages, batches)
    else:
        forward_only(stages, iter(()))


def asks(hidden):
    dist.send(hidden, 1)
    dist.recv(hidden, 1)


def answers(hidden):
    dist.recv(hidden, 0)
    dist.send(hidden, 0)


def two_roles(hidden):
    if dist.get_rank() == 0:
        asks(hidden)
    else:
        answers(hidden)


def meets_on_the_last():
    if is_last_rank():
        dist.barrier()  # LNT101


WRITER = 3


def exchanges(rank, mine):
    theirs = mine.clone()
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(theirs, 1)
    else:
        dist.recv(theirs, 0)
        dist.send(mine, 0)
    return theirs


def a_role_of_all_but_one(rank, mine):
    if rank == WRITER:
        print(mine)
    else:
        exchanges(rank, mine)
