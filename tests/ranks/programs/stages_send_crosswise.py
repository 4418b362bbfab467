"""Stages of a pipeline, one forward and one backward in turn. From its second phase on each stage sends to its neighbour while that sends to it."""

import time

import torch
import torch.distributed as dist
import toy


def both(sent, received, peer):
    """Both directions at once."""
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]):
        work.wait()


def step(rank, micro, at_once):
    first, last = rank == 0, rank == dist.get_world_size() - 1
    value, gradient = torch.ones(1 << 16), torch.ones(1 << 16)
    ahead = dist.get_world_size() - rank - 1
    for _ in range(ahead):
        if not first:
            dist.recv(value, rank - 1)
        if not last:
            dist.send(value, rank + 1)
    if not first:
        dist.recv(value, rank - 1)
    for k in range(micro - ahead):
        if not last:
            if at_once:
                both(value, gradient, rank + 1)
            else:
                dist.send(value, rank + 1)  # culprit
                dist.recv(gradient, rank + 1)
        if not first:
            if k == micro - ahead - 1:
                dist.send(gradient, rank - 1)
            elif at_once:
                both(gradient, value, rank - 1)
            else:
                dist.send(gradient, rank - 1)  # culprit
                dist.recv(value, rank - 1)
    for _ in range(ahead):
        if not last:
            dist.recv(gradient, rank + 1)
        if not first:
            dist.send(gradient, rank - 1)


def main():
    rank = toy.begin()
    dist.barrier()
    for at_once in (True, False):
        for _ in range(10):
            time.sleep(0.02)
            step(rank, 4, at_once)
    toy.end()


main()
