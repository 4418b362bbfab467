import math

import torch
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class SystemFrames(Dataset):
    """All frames of one atomic system, kept as one array per property."""

    def __init__(self, name, coords, energies, forces):
        self.name = name
        self.coords, self.energies, self.forces = coords, energies, forces

    def __len__(self):
        return len(self.energies)

    def __getitem__(self, i):
        return {"coord": self.coords[i], "energy": self.energies[i], "force": self.forces[i]}


class SystemPool(Dataset):
    def __init__(self, systems, batch_size):
        self.loaders = [DataLoader(s, batch_size=batch_size, shuffle=True) for s in systems]
        self.iters = [iter(l) for l in self.loaders]

    def __len__(self):
        return len(self.loaders)

    def __getitem__(self, i):
        try:
            return next(self.iters[i])
        except StopIteration:
            self.iters[i] = iter(self.loaders[i])
            return next(self.iters[i])


def system_weights(pool, temperature, device):
    batches = torch.tensor([len(l) for l in pool.loaders], dtype=torch.float32, device=device)
    noise = 1e-6 * torch.rand(len(batches), device=device)
    weights = batches.pow(1.0 / temperature) + noise
    return weights / weights.sum()


def make_stream(pool, weights):
    sampler = WeightedRandomSampler(weights.cpu(), num_samples=len(pool), replacement=True)
    loader = DataLoader(pool, sampler=sampler, batch_size=None)
    while True:
        yield from loader


def batches_per_epoch(pool, weights):
    counts = torch.tensor([len(l) for l in pool.loaders], dtype=torch.float32)
    return math.ceil(float((counts / weights.cpu()).max()))
