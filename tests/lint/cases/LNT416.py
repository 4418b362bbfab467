"""An address of the rendezvous that each rank makes up for itself."""

import os
import socket

import torch.distributed as dist
import torch.multiprocessing as mp


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def on_each_rank(rank, world):
    os.environ["MASTER_PORT"] = str(free_port())  # LNT416
    dist.init_process_group("nccl", rank=rank, world_size=world)


def by_url(rank, world):
    dist.init_process_group("nccl", init_method=f"tcp://localhost:{free_port()}", rank=rank, world_size=world)  # LNT416


def handed_in(rank, world, port):
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("nccl", rank=rank, world_size=world)


def launch(world):
    os.environ["MASTER_PORT"] = str(free_port())
    mp.spawn(handed_in, args=(world,), nprocs=world)


def alone():
    os.environ["WORLD_SIZE"] = "1"
    os.environ["MASTER_PORT"] = str(free_port())
    dist.init_process_group("gloo", rank=0, world_size=1)
