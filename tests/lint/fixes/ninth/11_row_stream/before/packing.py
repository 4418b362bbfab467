import torch
from torch.utils.data import DataLoader, IterableDataset


class PackedRows(IterableDataset):
    def __init__(self, source, length):
        self.source = source
        self.length = length
        self.carry = torch.empty(0, dtype=torch.long)

    def __iter__(self):
        for row in self.source:
            self.carry = torch.cat([self.carry, row])
            while self.carry.numel() > self.length:
                yield self.carry[: self.length + 1]
                self.carry = self.carry[self.length:]


def packed_loader(source, length, batch):
    return DataLoader(PackedRows(source, length), batch_size=batch, drop_last=True)
