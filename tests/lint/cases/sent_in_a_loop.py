"""All neighbours of a rank, one after the other: each sends to the first before it receives."""

import torch
import torch.distributed as dist


class Borders:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.above = self.rank - 1 if self.rank > 0 else None
        self.below = self.rank + 1 if self.rank + 1 < self.world else None

    def partners(self):
        return [r for r in (self.above, self.below) if r is not None]

    def swap(self, rows):
        got = {}
        for peer in self.partners():
            got[peer] = torch.empty_like(rows)
            dist.send(rows, dst=peer)  # LNT116
            dist.recv(got[peer], src=peer)
        return got

    def swap_in_order(self, rows):
        got = torch.empty_like(rows)
        for peer in self.partners():
            if self.rank < peer:
                dist.send(rows, dst=peer)
                dist.recv(got, src=peer)
            else:
                dist.recv(got, src=peer)
                dist.send(rows, dst=peer)
        return got

    def swap_without_waiting(self, rows):
        got = torch.empty_like(rows)
        for peer in self.partners():
            work = dist.isend(rows, dst=peer)
            dist.recv(got, src=peer)
            work.wait()
        return got


def swap_with_those_there_are(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    peers = []
    if rank > 0:
        peers.append(rank - 1)
    if rank < world - 1:
        peers.append(rank + 1)
    got = torch.empty_like(x)
    for peer in peers:
        dist.send(x, peer)  # LNT116
        dist.recv(got, peer)
    return got


def swap_by_steps(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    for step in (-1, 1):
        peer = rank + step
        if 0 <= peer < world:
            dist.send(x, peer)  # LNT116
            dist.recv(got, peer)
    return got


def send_to_both_then_take(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    for name, peer in {"left": rank - 1, "right": rank + 1}.items():
        if 0 <= peer < world:
            dist.send(x, peer)
    return got


def one_way(x):
    rank = dist.get_rank()
    for peer in (rank + 1, rank + 2):
        dist.send(x, peer)
        dist.recv(x, peer)
    return x


def by_parity_in_a_loop(x):
    rank, world = dist.get_rank(), dist.get_world_size()
    got = torch.empty_like(x)
    for peer in [rank - 1, rank + 1]:
        if not 0 <= peer < world:
            continue
        if rank % 2:
            dist.send(x, peer)
            dist.recv(got, peer)
        else:
            dist.recv(got, peer)
            dist.send(x, peer)
    return got


def asks_each_server(x, servers):
    for server in servers:
        dist.send(x, dst=server)
        dist.recv(x, src=server)
