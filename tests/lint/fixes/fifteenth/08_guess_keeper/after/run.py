import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from coach import Coach


def loader(count, batch):
    data = TensorDataset(torch.randn(count, 1024), torch.randn(count, 1024))
    return DataLoader(data, batch_size=batch, sampler=DistributedSampler(data), drop_last=True)


def main():
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(4))).to(local)
    for block in model:
        fully_shard(block)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    Coach(model, opt, loader(16384, 64), loader(2048, 64), sys.argv[1], local).run(10)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
