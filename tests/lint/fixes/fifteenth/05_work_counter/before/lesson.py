import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tutor import Tutor


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    tokens = torch.randint(0, 1000, (8192, 129))
    loader = DataLoader(tokens, batch_size=16, sampler=DistributedSampler(tokens), drop_last=True)
    model = nn.Sequential(nn.Embedding(1000, 256), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1000)).to(device)
    Tutor(model, loader, device, sys.argv[1]).train(epochs=3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
