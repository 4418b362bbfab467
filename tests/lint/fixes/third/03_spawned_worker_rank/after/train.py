import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def get_device(rank):
    return f"cuda:{rank}" if torch.cuda.is_available() else "cpu"


def worker(rank, node_rank, nproc, world_size, cfg):
    global_rank = node_rank * nproc + rank
    if torch.cuda.is_available():
        torch.cuda.set_device(rank)

    if world_size > 1:
        addr = os.environ.get("MASTER_ADDR", "localhost")
        port = os.environ.get("MASTER_PORT", "29500")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl",
            init_method=f"tcp://{addr}:{port}",
            device_id=torch.device(get_device(rank)),
            rank=global_rank,
            world_size=world_size,
        )

    if global_rank == 0:
        print(f"running {cfg.name} on {world_size} processes")
    run(cfg, rank, global_rank)
    if dist.is_initialized():
        dist.destroy_process_group()


def run(cfg, rank, global_rank):
    x = torch.ones(cfg.size, device=get_device(rank))
    dist.all_reduce(x)
    if global_rank == 0:
        print(x.sum().item())


def launch(cfg):
    nproc = torch.cuda.device_count()
    world_size = nproc * cfg.nnodes
    mp.spawn(worker, args=(cfg.node_rank, nproc, world_size, cfg), nprocs=nproc, join=True)
