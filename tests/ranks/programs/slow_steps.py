"""DDP that ends well: one step waits for its data, and with "all" every step takes longer from some step on."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 60 and dist.get_rank() == 1:
            time.sleep(2.5)  # one file on a slow disk
        return torch.ones(8)


def main() -> None:
    os.environ["NCCL_NTHREADS"] = "256"
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, sample in enumerate(torch.utils.data.DataLoader(Samples())):
        time.sleep(0.4 if "all" in sys.argv and number >= 90 else 0.01)
        optimizer.zero_grad()
        model(sample).sum().backward()
        optimizer.step()
    del model, optimizer  # with DDP alive, gloo now and then stands for ever in what follows
    dist.destroy_process_group()


main()
