"""Join the per-rank shards of an exported model into full safetensors files."""
import glob
import json
import logging
import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file

logger = logging.getLogger(__name__)


def read_pieces(folder):
    pieces = defaultdict(list)
    for path in sorted(glob.glob(os.path.join(folder, "shard-*.safetensors"))):
        with safe_open(path, framework="pt") as handle:
            offsets = json.loads((handle.metadata() or {}).get("offsets", "{}"))
            for key in handle.keys():
                pieces[key].append((offsets.get(key, 0), path))
    return pieces


def join_tensor(key, places):
    parts = []
    for _, path in sorted(places):
        with safe_open(path, framework="pt") as handle:
            parts.append(handle.get_tensor(key))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=0)


def write_file(folder, number, total, keys, pieces):
    name = f"model-{number:05d}-of-{total:05d}.safetensors"
    save_file({k: join_tensor(k, pieces[k]) for k in keys}, os.path.join(folder, name))
    return name


def merge(source, target, key_to_file, threads=4):
    total = max(key_to_file.values())
    pieces = read_pieces(source)
    by_file = defaultdict(list)
    for key, number in key_to_file.items():
        by_file[number].append(key)
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(write_file, target, n, total, keys, pieces) for n, keys in by_file.items()]
        return [job.result() for job in jobs]


def merge_on_every_rank(source, target, key_to_file, threads=4, group=None):
    rank = dist.get_rank(group)
    world = dist.get_world_size(group)
    numbers = sorted(set(key_to_file.values()))
    mine = {n for i, n in enumerate(numbers) if i % world == rank}
    part = {key: n for key, n in key_to_file.items() if n in mine}

    if not part:
        logger.info("rank %d: no files to write", rank)
    else:
        logger.info("rank %d: %d of %d files", rank, len(mine), len(numbers))
        merge(source, target, part, threads)

    dist.barrier(group=group)
    if rank == 0:
        logger.info("all %d files are written", len(numbers))
