"""The measured job: DDP steps of some 25 ms, then small all-reduces; rank 0 writes the times. Usage: step_program.py OUT STEPS."""

import json
import os
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    """Trains, measures, writes."""
    torch.set_num_threads(1)
    out, steps = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    width = 512
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batch = torch.randn(192, width)
    times = []
    for _ in range(steps + 10):
        start = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    small = torch.ones(16)
    dist.barrier()
    calls = []
    for _ in range(2000):
        start = time.perf_counter()
        dist.all_reduce(small)
        calls.append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        with open(out, "w") as file:
            json.dump({"step_s": statistics.median(times[10:]), "call_s": statistics.median(calls)}, file)
    dist.barrier()
    del model
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


main()
