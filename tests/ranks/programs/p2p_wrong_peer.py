"""A pipeline whose third stage sends to the stage after the next, which is rank 0."""

import torch
import torch.distributed as dist
import toy


def pass_on(rank, activation):
    last = dist.get_world_size() - 1
    if rank > 0:
        dist.recv(activation, src=rank - 1)
    if rank < last:
        next_stage = rank + 1 if rank != 2 else 0  # a table that lost one entry
        dist.send(activation * 2, dst=next_stage)  # culprit


def main():
    rank = toy.begin()
    toy.train(rank)
    pass_on(rank, torch.ones(8))
    toy.end()


main()
