"""Windows of a gridded archive and the length of each forecast."""
import numpy as np
import torch
from torch.utils.data import IterableDataset


class ForecastWindows(IterableDataset):
    def __init__(self, store, cfg, rank, world):
        self.store = store
        self.cfg = cfg
        self.rank, self.world = rank, world
        self.rng = np.random.default_rng(cfg.seed + rank)
        self.epoch = 0

    def __len__(self):
        return self.cfg.samples_per_epoch // (self.world * self.cfg.batch)

    def draw_steps(self):
        low, high = self.cfg.num_steps
        if self.cfg.policy == "fixed":
            return high
        if self.cfg.policy == "sequential":
            return low + self.epoch % (high - low + 1)
        return int(self.rng.integers(low, high + 1))

    def window(self, start, steps):
        fields = self.store[start : start + steps + 1]
        return torch.from_numpy(np.ascontiguousarray(fields)).float()

    def __iter__(self):
        longest = self.cfg.num_steps[1]
        for _ in range(len(self)):
            steps = self.draw_steps()
            starts = self.rng.integers(0, len(self.store) - longest - 1, self.cfg.batch)
            yield torch.stack([self.window(int(s), steps) for s in starts]), steps
        self.epoch += 1
