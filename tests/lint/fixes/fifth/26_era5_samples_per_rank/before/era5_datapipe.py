from pathlib import Path

import h5py
import numpy as np


class ERA5Datapipe:
    def __init__(self, data_dir, num_steps, stride, batch_size, rank, world_size, samples_per_year=None):
        self.paths = sorted(Path(data_dir).glob("????.h5"))
        self.num_steps = num_steps
        self.stride = stride
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        with h5py.File(self.paths[0], "r") as f:
            available = f["fields"].shape[0] - num_steps * stride
        if samples_per_year is None:
            samples_per_year = available
        if samples_per_year > available:
            raise ValueError(f"{samples_per_year} samples per year wanted, {available} there")
        self.samples_per_year = samples_per_year
        self.total = len(self.paths) * samples_per_year
        self.indices = np.array_split(np.arange(self.total), world_size)[rank]

    def __len__(self):
        return len(self.indices) // self.batch_size

    def __iter__(self):
        order = np.random.permutation(self.indices)
        for b in range(len(self)):
            batch = []
            for idx in order[b * self.batch_size : (b + 1) * self.batch_size]:
                year, start = divmod(int(idx), self.samples_per_year)
                with h5py.File(self.paths[year], "r") as f:
                    batch.append(f["fields"][start : start + (self.num_steps + 1) * self.stride : self.stride])
            yield np.stack(batch)
