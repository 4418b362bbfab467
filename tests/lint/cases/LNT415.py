"""The number of a process on its node, given as its number in the job."""

import os

import torch.distributed as dist


def from_the_launcher():
    rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl", rank=rank, world_size=8)  # LNT415


def worker(rank, node, per_node, world):
    global_rank = node * per_node + rank
    dist.init_process_group("nccl", rank=rank, world_size=world)  # LNT415
    return global_rank


def right(rank, node, per_node, world):
    global_rank = node * per_node + rank
    dist.init_process_group("nccl", rank=global_rank, world_size=world)


def on_one_node(rank, world):
    dist.init_process_group("nccl", rank=rank, world_size=world)
