"""The loader of rank 1 is slow, and everybody waits for its batches in each step."""

import os
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows that come slowly on one rank."""

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.2 if os.environ["RANK"] == "1" else 0.02)
        return torch.ones(4)


def main():
    dist.init_process_group("gloo")
    for batch in DataLoader(Rows(), 8, num_workers=1):
        dist.all_reduce(batch.sum(0))


main()
