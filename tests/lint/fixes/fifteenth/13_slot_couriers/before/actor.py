import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from courier import Courier
from engines import open_engines


class Actor:
    def __init__(self, device):
        self.device = device
        self.net = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)).to(device)
        self.wrapped = DDP(self.net, device_ids=[device])
        self.opt = torch.optim.AdamW(self.wrapped.parameters(), lr=1e-4)
        self.courier = Courier(self.net)

    def train(self, steps):
        for _ in range(steps):
            loss = self.wrapped(torch.randn(32, 256, device=self.device)).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus-per-engine", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    count = dist.get_world_size() // args.gpus_per_engine
    actor = Actor(device)
    actor.courier.connect(open_engines(count), [args.gpus_per_engine] * count)
    actor.courier.deliver()
    for _ in range(args.rounds):
        actor.train(50)
        actor.courier.deliver()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
