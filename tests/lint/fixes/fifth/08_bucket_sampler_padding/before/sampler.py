import math

import torch
from torch.utils.data import Sampler


class SequentialBucketSampler(Sampler):
    def __init__(self, buckets, batch_size_for, rank, num_replicas, seed=0, shuffle=True):
        self.buckets = buckets
        self.batch_size_for = batch_size_for
        self.rank = rank
        self.num_replicas = num_replicas
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.seed + self.epoch)
        for key in sorted(self.buckets):
            indices = list(self.buckets[key]["indices"])
            batch_size = self.batch_size_for(self.buckets[key]["resolution"])
            if self.shuffle:
                indices = [indices[i] for i in torch.randperm(len(indices), generator=g).tolist()]
            total_size = math.ceil(len(indices) / self.num_replicas) * self.num_replicas
            padding_size = total_size - len(indices)
            if padding_size > 0:
                indices = indices + indices[:padding_size]
            indices = indices[self.rank :: self.num_replicas]
            for i in range(0, len(indices), batch_size):
                yield indices[i : i + batch_size]
