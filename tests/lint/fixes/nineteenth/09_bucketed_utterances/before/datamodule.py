import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler


@dataclass
class DataArgs:
    max_duration: float = 80.0
    num_buckets: int = 6
    shuffle: bool = True
    drop_last: bool = False
    num_workers: int = 4
    seed: int = 42


class BucketingSampler(Sampler):
    def __init__(self, durations, max_duration, num_buckets, shuffle, drop_last, seed):
        self.durations = durations
        self.max_duration = max_duration
        self.num_buckets = num_buckets
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.epoch = 0
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _batches(self):
        rng = random.Random(self.seed + self.epoch)
        order = sorted(range(len(self.durations)), key=self.durations.__getitem__)
        size = len(order) // self.num_buckets + 1
        batches = []
        for start in range(0, len(order), size):
            bucket = order[start : start + size]
            if self.shuffle:
                rng.shuffle(bucket)
            batch, total = [], 0.0
            for index in bucket:
                if batch and total + self.durations[index] > self.max_duration:
                    batches.append(batch)
                    batch, total = [], 0.0
                batch.append(index)
                total += self.durations[index]
            if batch:
                batches.append(batch)
        if self.shuffle:
            rng.shuffle(batches)
        return batches

    def __iter__(self):
        batches = self._batches()
        if self.drop_last:
            batches = batches[: len(batches) // self.world_size * self.world_size]
        yield from batches[self.rank :: self.world_size]


def train_dataloader(dataset, args):
    sampler = BucketingSampler(
        dataset.durations,
        max_duration=args.max_duration,
        num_buckets=args.num_buckets,
        shuffle=args.shuffle,
        drop_last=args.drop_last,
        seed=args.seed,
    )
    return DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=dataset.collate,
        num_workers=args.num_workers,
    )
