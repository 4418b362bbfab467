import os

import numpy as np
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from shared import SharedBarrier


class StreamingDataset(IterableDataset):
    def __init__(self, shards, shuffle_seed, rank, ranks_per_node):
        self.shards = shards
        self.rank = rank
        self.ranks_per_node = ranks_per_node
        seed_rng = np.random.default_rng(shuffle_seed)
        self.shuffle_seed = int(seed_rng.integers(1 << 60))
        prefix_int = np.random.randint(1 << 24)
        self.prefix = f"{prefix_int:06x}"
        self.shared_dir = os.path.join("/tmp", "streaming", self.prefix)
        if dist.is_available() and dist.is_initialized():
            dist.barrier()
        self.barrier_args = (os.path.join(self.shared_dir, "barrier_lock"), f"{self.prefix}_barrier")
        self._barrier = None
        self.epoch = 0

    def __iter__(self):
        info = get_worker_info()
        workers = info.num_workers if info else 1
        worker = info.id if info else 0
        if self._barrier is None:
            self._barrier = SharedBarrier(*self.barrier_args)
        self._barrier(self.ranks_per_node * workers)
        order = np.random.default_rng(self.shuffle_seed + self.epoch).permutation(len(self.shards))
        self.epoch += 1
        part = self.rank * workers + worker
        for shard in order[part :: self.ranks_per_node * workers]:
            yield from self.shards[shard].read()
