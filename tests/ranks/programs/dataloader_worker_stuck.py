"""A loader's worker is forked on rank 1 while another thread holds a lock, which nobody releases in the worker."""

import threading
import time

import torch
import toy
from torch.utils.data import DataLoader, Dataset

CACHE_LOCK = threading.Lock()

# Both lines are right: where the training waits for a batch, and where the worker hangs.


class Rows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        with CACHE_LOCK:  # culprit
            return toy.batch(index, rows=1)[0]


def fill_cache():
    with CACHE_LOCK:
        time.sleep(0.5)


def main():
    rank = toy.begin()
    weights = torch.zeros(4, 1)
    for epoch in range(2):
        if rank == 1 and epoch == 1:
            threading.Thread(target=fill_cache).start()
            time.sleep(0.1)
        for inputs in DataLoader(Rows(), 8, num_workers=1):  # culprit
            toy.train_step(weights, inputs)
    toy.end()


main()
