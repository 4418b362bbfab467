"""Groups without the limit that the job's own was given."""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


def start(limit):
    dist.init_process_group("nccl", timeout=timedelta(minutes=limit))
    return mesh()


def mesh():
    return init_device_mesh("cuda", (2, 4))  # LNT308


def start_with_both(limit):
    limit = timedelta(minutes=limit)
    dist.init_process_group("nccl", timeout=limit)
    return dist.new_group([0, 1], timeout=limit)


def start_with_defaults():
    dist.init_process_group("nccl")
    return dist.new_group([0, 1])
