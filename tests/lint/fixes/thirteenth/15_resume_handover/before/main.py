import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

from learner import Learner
from player import Player
from wire import WIDTH, Wire


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--stop", type=int, default=1000)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(5)
    policy = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    wire = Wire(device)
    if dist.get_rank() == 0:
        Learner(policy, wire, args.folder).run(args.start, args.stop)
    else:
        Player(policy, wire, device).run(args.start, args.stop)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
