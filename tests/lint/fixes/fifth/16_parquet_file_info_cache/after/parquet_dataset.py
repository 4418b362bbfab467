import logging
import os
import pickle

import pyarrow.parquet as pq
import torch.distributed as dist
from torch.utils.data import Dataset

logger = logging.getLogger(__name__)


def scan(path):
    names = []
    for root, _, files in os.walk(path):
        names += [os.path.join(root, f) for f in sorted(files) if f.endswith(".parquet")]
    if not names:
        raise ValueError(f"no parquet files in {path}")
    return sorted((name, pq.ParquetFile(name).metadata.num_rows) for name in names)


def files_and_lengths(path):
    cache_file = os.path.join(path, "map_style_cache", "file_info.pkl")
    if dist.get_rank() == 0:
        loaded = False
        if os.path.exists(cache_file):
            logger.info("loading cached file info from %s", cache_file)
            try:
                with open(cache_file, "rb") as f:
                    pickle.load(f)
                loaded = True
            except Exception as e:
                logger.error("cannot load %s: %s", cache_file, e)
        if not loaded:
            info = scan(path)
            os.makedirs(os.path.dirname(cache_file), exist_ok=True)
            with open(cache_file, "wb") as f:
                pickle.dump(info, f)
            logger.info("saved file info to %s", cache_file)
    if dist.get_world_size() > 1:
        dist.barrier()
    with open(cache_file, "rb") as f:
        return pickle.load(f)


class LatentsDataset(Dataset):
    def __init__(self, path, transform):
        self.files = files_and_lengths(path)
        self.transform = transform

    def __len__(self):
        return sum(n for _, n in self.files)

    def __getitem__(self, index):
        for name, rows in self.files:
            if index < rows:
                return self.transform(pq.read_table(name).slice(index, 1).to_pylist()[0])
            index -= rows
        raise IndexError(index)
