import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import torch.distributed as dist
from safetensors import safe_open


class NodeLayout:
    """Which ranks live on this host, and the group that joins them."""

    def __init__(self, ranks_per_node):
        world = dist.get_world_size()
        self.rank = dist.get_rank()
        self.ranks_per_node = ranks_per_node
        self.local_rank = self.rank % ranks_per_node
        self.group = None
        for first in range(0, world, ranks_per_node):
            members = list(range(first, first + ranks_per_node))
            group = dist.new_group(members, backend="gloo")
            if self.rank in members:
                self.group = group

    def wait(self):
        dist.barrier(group=self.group)


def _touch(path, chunk=16 << 20):
    with open(path, "rb", buffering=0) as handle:
        while handle.read(chunk):
            pass


class SafetensorReader:
    def __init__(self, layout, headroom=0.9, threads=8):
        self.layout = layout
        self.headroom = headroom
        self.threads = threads

    def _shards(self, folder):
        files = sorted(Path(folder).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"no safetensors files in {folder}")
        return files

    def _warm_page_cache(self, files):
        mine = files[self.layout.local_rank::self.layout.ranks_per_node]
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(_touch, mine))

    def read(self, folder):
        files = self._shards(folder)
        total = sum(os.path.getsize(f) for f in files)
        free = psutil.virtual_memory().available
        if total < free * self.headroom:
            self._warm_page_cache(files)
        self.layout.wait()

        weights = {}
        for file in files:
            with safe_open(file, framework="pt", device="cpu") as handle:
                for key in handle.keys():
                    weights[key] = handle.get_tensor(key)
        return weights
