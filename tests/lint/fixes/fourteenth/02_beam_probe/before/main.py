import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

from learning import learn


def events(count):
    hits = torch.randn(count, 24)
    return TensorDataset(hits, hits[:, :4].cumsum(1))


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    net = torch.nn.Sequential(torch.nn.Linear(24, 64), torch.nn.GELU(), torch.nn.Linear(64, 4)).to(rank)
    if world > 1:
        dist.init_process_group("nccl", rank=rank, world_size=world)
        net = DDP(net, device_ids=[rank])
    tests = {"qcd": events(512), "ttbar": events(1024)}
    learn(rank, world, net, events(8192), tests, sys.argv[1], epochs=5)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
