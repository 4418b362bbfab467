import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from archive import CrownArchive
from trainer import Trainer


def loader(count):
    x = torch.randn(count, 64)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    return DataLoader(data, batch_size=64, sampler=DistributedSampler(data))


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
    Trainer(model, local, CrownArchive(sys.argv[1])).fit(loader(8192), loader(1024), epochs=10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
