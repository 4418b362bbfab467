import os
import pickle

import pyarrow.parquet as pq
import torch.distributed as dist
from torch.utils.data import IterableDataset


def get_parquet_files_and_length(path):
    cache_dir = os.path.join(path, "map_style_cache")
    cache_file = os.path.join(cache_dir, "file_info.pkl")
    if dist.get_rank() == 0 and not os.path.exists(cache_file):
        file_names, lengths = [], []
        for root, _, files in os.walk(path):
            for name in sorted(files):
                if name.endswith(".parquet"):
                    file_path = os.path.join(root, name)
                    file_names.append(file_path)
                    lengths.append(pq.ParquetFile(file_path).metadata.num_rows)
        os.makedirs(cache_dir, exist_ok=True)
        with open(cache_file, "wb") as f:
            pickle.dump((file_names, lengths), f)
    dist.barrier()
    with open(cache_file, "rb") as f:
        return pickle.load(f)


class LatentsParquetIterStyleDataset(IterableDataset):
    def __init__(self, path, batch_size=1, seed=42):
        self.files, self.lengths = get_parquet_files_and_length(path)
        self.batch_size = batch_size
        self.seed = seed
        world_size = dist.get_world_size()
        per_rank = sum(self.lengths) // world_size
        self.start = per_rank * dist.get_rank()
        self.stop = self.start + per_rank

    def __iter__(self):
        seen = 0
        for file_path, length in zip(self.files, self.lengths):
            if seen + length > self.start and seen < self.stop:
                for i, row in enumerate(pq.read_table(file_path).to_pylist()):
                    if self.start <= seen + i < self.stop:
                        yield row
            seen += length
