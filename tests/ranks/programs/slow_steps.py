"""DDP that ends well: one step waits for its data, and with "all" every step takes longer from some step on."""

from __future__ import annotations

import os
import sys
import time
from statistics import median

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

took_s: list[float] = []  # of each step: on a busy machine, what is slow takes longer, too


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 60 and dist.get_rank() == 1:
            time.sleep(max(2.5, 15 * median(took_s)))  # one file on a slow disk
        return torch.ones(8)


def main() -> None:
    os.environ["NCCL_NTHREADS"] = "256"
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, sample in enumerate(torch.utils.data.DataLoader(Samples())):
        began = time.monotonic()
        time.sleep(max(0.4, 6 * median(took_s)) if "all" in sys.argv and number >= 90 else 0.05)
        optimizer.zero_grad()
        model(sample).sum().backward()
        optimizer.step()
        if number < 90:
            took_s.append(time.monotonic() - began)
    del model, optimizer  # with DDP alive, gloo now and then stands for ever in what follows
    dist.destroy_process_group()


main()
