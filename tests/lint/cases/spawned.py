"""The first argument of a spawned function is the rank, whatever its name."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(i, world):
    dist.init_process_group("gloo", rank=i, world_size=world)
    loss = torch.ones(1)
    if i == 0:
        dist.all_reduce(loss)  # LNT101
    if world > 1:
        dist.all_reduce(loss)


def called(i, loss):
    if i == 0:
        dist.all_reduce(loss)


if __name__ == "__main__":
    called(0, torch.ones(1))
    mp.spawn(work, (3,), 3)
