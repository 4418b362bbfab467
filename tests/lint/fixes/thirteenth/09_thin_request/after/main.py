import os

import torch
import torch.distributed as dist
import torch.nn as nn

from actor import Actor
from desk import Desk


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 8))
    Desk(Actor(model, device)).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
