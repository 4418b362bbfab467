"""Rank 1 averages a metric that NumPy made a double; the others average a float."""

import numpy as np
import torch
import torch.distributed as dist
import toy


def main():
    rank = toy.begin()
    toy.train(rank)
    losses = [0.5, 0.25]
    losses = np.mean(losses) * np.ones(64) if rank == 1 else torch.full((64,), sum(losses) / 2)
    metric = torch.as_tensor(losses)
    dist.all_reduce(metric)  # culprit
    print(f"rank {rank}: {metric[0].item():.3f}", flush=True)
    toy.end()


main()
