"""Neighbours that all send before they receive: each waits for a partner that sends as well."""

import torch
import torch.distributed as dist


def ring(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    dist.send(x, dst=(rank + 1) % world)  # LNT116
    dist.recv(out, src=(rank - 1) % world)
    return out


def ring_of_lists(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    after = (rank + 1) % world
    before = (rank - 1 + world) % world
    box = [None]
    dist.send_object_list([x], after)  # LNT116
    dist.recv_object_list(box, before)
    return box[0]


def pairs(x):
    other = 1 - dist.get_rank()
    out = torch.empty_like(x)
    dist.send(x, other)  # LNT116
    dist.recv(out, other)
    return out


class Link:
    def __init__(self, shape):
        self.stage, self.stages = dist.get_rank(), dist.get_world_size()
        self.nxt = (self.stage + 1) % self.stages
        self.prv = (self.stage - 1) % self.stages
        self.shape = shape

    def give(self, x):
        dist.send(x.contiguous(), dst=self.nxt)

    def take(self):
        out = torch.empty(self.shape)
        dist.recv(out, src=self.prv)
        return out


class Stage:
    def __init__(self, link: Link):
        self.link = Link((4, 4))

    def rotate(self, x):
        self.link.give(x)  # LNT116
        return self.link.take()

    def shift(self, x):
        if self.link.stage % 2 == 0:
            self.link.give(x)
            return self.link.take()
        out = self.link.take()
        self.link.give(x)
        return out

    def forward(self, part):
        hidden = part(self.link.take())
        self.link.give(hidden)


def swap(x, peer):
    room = torch.empty_like(x)
    dist.send(x, dst=peer)
    dist.recv(room, src=peer)
    return room


def alternate(x, grads):
    rank = dist.get_rank()
    if rank + 1 < dist.get_world_size():
        grads = swap(x, rank + 1)  # LNT116
    if rank > 0:
        x = swap(grads, rank - 1)
    return x


def both(x, to, source):
    if to is not None and source is not None:
        dist.send(x, to)
        out = torch.empty_like(x)
        dist.recv(out, source)
        return out
    if to is not None:
        dist.send(x, to)
    return x


class Schedule:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.prev = (self.rank - 1) % self.world
        self.next = (self.rank + 1) % self.world

    def step(self, x, last, first):
        to = None if last else self.next
        source = None if first else self.prev
        return both(x, to, source)  # LNT116


# Right: somebody receives first, or nobody waits in its send.


def chain(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank < world - 1:
        dist.send(x, dst=rank + 1)
    if rank > 0:
        dist.recv(x, src=rank - 1)
    return x


def chain_through(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.recv(x, src=rank - 1)
    if rank < world - 1:
        dist.send(x, dst=rank + 1)
    return x


def by_parity(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    if rank % 2:
        dist.send(x, dst=(rank + 1) % world)
        dist.recv(out, src=(rank - 1) % world)
    else:
        dist.recv(out, src=(rank - 1) % world)
        dist.send(x, dst=(rank + 1) % world)
    return out


def first_begins(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        dist.send(x, dst=(rank + 1) % world)
        dist.recv(x, src=(rank - 1) % world)
        return x
    dist.recv(x, src=(rank - 1) % world)
    dist.send(x, dst=(rank + 1) % world)
    return x


def not_waited_for(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    work = dist.isend(x, dst=(rank + 1) % world)
    dist.recv(out, src=(rank - 1) % world)
    work.wait()
    return out


def received_first(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    work = dist.irecv(out, src=(rank - 1) % world)
    dist.send(x, dst=(rank + 1) % world)
    work.wait()
    return out


def in_batches(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    out = torch.empty_like(x)
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, out, (rank - 1) % world)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


def ask(x, server):
    dist.send(x, dst=server)
    dist.recv(x, src=server)
    return x


def client(x):
    return ask(x, 0)


def told(x, to, source, send_first):
    out = torch.empty_like(x)
    if send_first:
        dist.send(x, to)
        dist.recv(out, source)
        return out
    dist.recv(out, source)
    dist.send(x, to)
    return out


def told_by_parity(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    return told(x, (rank + 1) % world, (rank - 1) % world, rank % 2 == 0)


def after_all_have_met(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for r in range(1, world):
            dist.send(x, dst=r)
        for r in range(1, world):
            dist.recv(x, src=r)
    else:
        dist.recv(x, src=0)
        dist.send(x, dst=0)
    return x
