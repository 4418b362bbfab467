import math

import torch


class SystemPool:
    """Several systems of configurations, drawn with unequal weights."""

    def __init__(self, sizes, weights, batch, seed):
        self.sizes = sizes
        self.weights = torch.tensor(weights, dtype=torch.double)
        self.batch = batch
        self.draws = torch.Generator().manual_seed(seed)

    def shares(self, probe=20000):
        picked = torch.multinomial(self.weights, probe, replacement=True, generator=self.draws)
        counts = torch.bincount(picked, minlength=len(self.sizes)).double()
        return (counts / probe).clamp_min(1e-6)

    def steps_per_epoch(self):
        batches = torch.tensor([math.ceil(n / self.batch) for n in self.sizes], dtype=torch.double)
        return math.ceil((batches / self.shares()).max().item())

    def next_batch(self, device):
        which = torch.multinomial(self.weights, 1, generator=self.draws).item()
        x = torch.randn(self.batch, 16, generator=self.draws).to(device)
        return x, x.sum(-1, keepdim=True) * (which + 1)
