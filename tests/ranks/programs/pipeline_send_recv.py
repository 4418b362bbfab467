"""A pipeline of four stages: each receives from the one before and sends to the one after."""

import time

import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    last = dist.get_world_size() - 1
    for _ in range(60):
        activation = torch.ones(16)
        if rank > 0:
            dist.recv(activation, src=rank - 1)
        time.sleep(0.01)
        if rank < last:
            dist.send(activation + 1, dst=rank + 1)
    toy.end()


main()
