import random

from torch.utils.data import Sampler


class DistributedGroupBatchSampler(Sampler):
    def __init__(self, inner, num_replicas, rank, shuffle=True, seed=0):
        self._inner = inner
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def __iter__(self):
        all_batches = list(self._inner)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(all_batches)
        all_batches = all_batches[: len(all_batches) // self.num_replicas * self.num_replicas]
        for i in range(self.rank, len(all_batches), self.num_replicas):
            yield all_batches[i]
