"""What is the same on all ranks though a rank is in it: multiples of their number, flags that callers set, values that MPI has broadcast."""

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI


def generates(seeds, most):
    count = ((len(seeds) - 1) // (most * dist.get_world_size()) + 1) * dist.get_world_size()
    parts = torch.as_tensor(seeds).tensor_split(count)
    for _ in parts[dist.get_rank() :: dist.get_world_size()]:
        dist.barrier()
    for _ in np.array_split(seeds, count)[dist.get_rank() :: dist.get_world_size()]:
        dist.barrier()
    for _ in range(count)[dist.get_rank() :: dist.get_world_size()]:
        dist.barrier()


def generates_as_many_as_there_are(seeds, most):
    parts = torch.as_tensor(seeds).tensor_split((len(seeds) - 1) // most + 1)
    for _ in parts[dist.get_rank() :: dist.get_world_size()]:
        dist.barrier()  # LNT110


def load(path, rank0=False):
    if rank0:
        return {}
    dist.barrier()
    return torch.load(path)


def base(path, rank0):
    return load(path, rank0)


def load_both(path):
    return base(path, True), base(path, False)


def save(is_main_process):
    if is_main_process:
        dist.barrier()  # LNT101


def trains(path):
    save(dist.get_rank() == 0)


def is_time_for(step, every, done, rank, first_only=False):
    if first_only and rank != 0:
        return False
    if done:
        return True
    return step % every == 0


def validates(step, every, done):
    if is_time_for(step, every, done, dist.get_rank()):
        dist.barrier()


def saves(step, every, done):
    if is_time_for(step, every, done, dist.get_rank(), first_only=True):
        dist.barrier()  # LNT101


def searches(left, right):
    while right - left >= 3:
        if dist.get_rank() == 0:
            score = MPI.COMM_WORLD.bcast(torch.rand(1).item())
        else:
            score = MPI.COMM_WORLD.bcast(None)
        dist.barrier()
        if score < 0.5:
            right = right - 1
        else:
            left = left + 1


def searches_alone(left, right):
    while right - left >= 3:
        dist.barrier()  # LNT110
        if dist.get_rank() == 0:
            right = right - 1
        else:
            left = left + 1
