import os
import socket
from contextlib import closing

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def find_free_port():
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as s:
        s.bind(("", 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return str(s.getsockname()[1])


def setup_process(rank, world_size, master_port, backend="nccl"):
    print(f"setting up rank={rank} (with world_size={world_size})")
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = master_port
    torch.cuda.set_device(rank)
    dist.init_process_group(backend, rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


def run_training(rank, world_size, master_port):
    setup_process(rank, world_size, master_port)
    model = DDP(torch.nn.Linear(10, 10).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(100):
        loss = model(torch.randn(20, 10, device=rank)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    cleanup()


def main():
    world_size = torch.cuda.device_count()
    mp.spawn(run_training, args=(world_size, find_free_port()), nprocs=world_size)


if __name__ == "__main__":
    main()
