import torch
from torch.utils.data import DataLoader, IterableDataset


class FileShard(IterableDataset):
    """The documents of the files that belong to this rank."""

    def __init__(self, files, rank, world, block=512):
        self.files = files[rank::world]
        self.block = block

    def __iter__(self):
        held = []
        for path in self.files:
            with open(path, "rb") as f:
                held.extend(f.read())
            while len(held) > self.block:
                yield torch.tensor(held[: self.block + 1])
                held = held[self.block :]


def loader_for(files, rank, world, batch=16):
    return DataLoader(FileShard(files, rank, world), batch_size=batch, drop_last=True)
