import os

import numpy as np
import torch
import torch.distributed as dist
from datasets import load_dataset


def all_true(flag):
    value = torch.tensor([int(flag)], dtype=torch.int32)
    dist.all_reduce(value, op=dist.ReduceOp.MIN)
    return bool(value.item())


def open_corpus(name, split, cache):
    rank = dist.get_rank()
    dset = None
    if rank == 0:
        print(f"Opening dataset {name}", flush=True)
        try:
            dset = load_dataset(name, split=split, cache_dir=cache, keep_in_memory=None)
        except Exception as error:
            print(f"Cannot open {name}: {error}", flush=True)
    if not all_true(rank != 0 or dset is not None):
        return None
    if rank != 0:
        dset = load_dataset(name, split=split, cache_dir=cache, keep_in_memory=None)
    return dset


def my_range(total):
    rank, world = dist.get_rank(), dist.get_world_size()
    edges = np.linspace(0, total, world + 1).astype(int)
    return int(edges[rank]), int(edges[rank + 1])


def write_part(path, encoded):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    flat = np.concatenate(encoded) if encoded else np.zeros(0, dtype=np.uint16)
    flat.astype(np.uint16).tofile(path)
    return flat.size
