import mmap
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from cache import RawCache


class WeightLoader:
    def __init__(self, cache: RawCache, group):
        self.cache = cache
        self.group = group

    def _free_memory(self):
        free = torch.tensor([psutil.virtual_memory().available], dtype=torch.long)
        dist.all_reduce(free, op=dist.ReduceOp.MIN, group=self.group)
        return int(free.item())

    def _warm(self, files):
        mine = files[dist.get_rank(self.group) :: dist.get_world_size(self.group)]
        for path in mine:
            with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as view:
                for at in range(0, len(view), 1 << 20):
                    view[at]

    def load(self, folder: Path):
        files = sorted(folder.glob("*.pt"))
        free = self._free_memory()
        weights = self.cache.get(folder)
        if weights is not None:
            dist.barrier(group=self.group)
            return weights
        size = sum(f.stat().st_size for f in files)
        if size < free * 0.8:
            self._warm(files)
        dist.barrier(group=self.group)
        weights = {}
        for path in files:
            weights.update(torch.load(path, map_location="cpu"))
        self.cache.put(folder, weights)
        return weights
