import random
from collections import defaultdict
from pathlib import Path

import h5py
import torch
from torch.utils.data import Dataset, Sampler


class KneeSlices(Dataset):
    def __init__(self, root, transform, keep_fraction=1.0):
        self.transform = transform
        self.examples = []
        files = sorted(Path(root).glob("*.h5"))
        if keep_fraction < 1.0:
            random.shuffle(files)
            files = files[:round(len(files) * keep_fraction)]
        for fname in sorted(files):
            with h5py.File(fname, "r") as data:
                count = data["kspace"].shape[0]
            self.examples += [(fname, i) for i in range(count)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        fname, i = self.examples[index]
        with h5py.File(fname, "r") as data:
            return self.transform(data["kspace"][i], data["reconstruction_esc"][i])


class WholeVolumes(Sampler):
    """Keeps the slices of a volume on one process, padded to the longest process."""

    def __init__(self, dataset, num_replicas, rank):
        by_volume = defaultdict(list)
        for index, (fname, _) in enumerate(dataset.examples):
            by_volume[fname].append(index)
        shares = [[] for _ in range(num_replicas)]
        for k, fname in enumerate(sorted(by_volume)):
            shares[k % num_replicas] += by_volume[fname]
        self.num_samples = max(len(share) for share in shares)
        self.indices = shares[rank] + shares[rank][: self.num_samples - len(shares[rank])]

    def __iter__(self):
        order = torch.randperm(len(self.indices)).tolist()
        return iter([self.indices[i] for i in order])

    def __len__(self):
        return self.num_samples
