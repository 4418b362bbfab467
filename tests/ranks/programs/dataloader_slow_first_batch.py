"""The shard of rank 2 lies on cold storage: its first batch takes longer than anybody waits."""

import time

import torch
import torch.distributed as dist
import toy
from torch.utils.data import DataLoader, Dataset

# Both lines are right: where the training waits for a batch, and where the data set reads.


class Shard(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if self.rank == 2 and index == 0:
            time.sleep(60)  # culprit
        return toy.batch(index, rows=1)[0]


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    dist.barrier()
    for inputs in DataLoader(Shard(rank), 8):  # culprit
        toy.train_step(weights, inputs)
    toy.end()


main()
