import torch
from torch.utils.data import DataLoader, Dataset


class CasePatches(Dataset):
    def __init__(self, cases, patch=32):
        self.index = []
        for number, depth in cases:
            self.index += [(number, z) for z in range(0, depth, patch)]
        self.patch = patch

    def __len__(self):
        return len(self.index)

    def __getitem__(self, item):
        number, z = self.index[item]
        gen = torch.Generator().manual_seed(1000 * number + z)
        return torch.rand(1, self.patch, 64, 64, generator=gen), number, z


def cases_of(rank, world, listing):
    return [case for position, case in enumerate(listing) if position % world == rank]


def case_loader(rank, world, listing, batch_size):
    return DataLoader(CasePatches(cases_of(rank, world, listing)), batch_size=batch_size)
