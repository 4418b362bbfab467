import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class TokenWindows(Dataset):
    def __init__(self, path, length):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, i):
        start = i * self.length
        piece = torch.from_numpy(self.tokens[start : start + self.length + 1].astype(np.int64))
        return piece[:-1], piece[1:]


class Cycle:
    """Starts the loader again (with the next epoch's order) whenever it ends."""

    def __init__(self, loader):
        self.loader = loader
        self.epoch = 0
        self.source = iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.source)
        except StopIteration:
            self.epoch += 1
            self.loader.sampler.set_epoch(self.epoch)
            self.source = iter(self.loader)
            return next(self.source)


def make_batches(path, length, micro_batch, dp_rank, dp_size, workers=2):
    data = TokenWindows(path, length)
    sampler = DistributedSampler(data, num_replicas=dp_size, rank=dp_rank, shuffle=True)
    loader = DataLoader(data, batch_size=micro_batch, sampler=sampler, num_workers=workers,
                        pin_memory=True, drop_last=True)
    return Cycle(loader)
