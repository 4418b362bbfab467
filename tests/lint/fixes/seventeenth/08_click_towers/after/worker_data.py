from dataclasses import dataclass

import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


@dataclass
class DataLoaderArgs:
    batch_size: int = 512
    num_workers: int = 1
    pin_memory: bool = True
    prefetch_factor: int = 2
    drop_last: bool = True


class ParquetRows(IterableDataset):
    """Streams the row groups that belong to this process."""

    def __init__(self, paths, columns):
        self.paths = paths
        self.columns = columns
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def _groups(self):
        number = 0
        for path in self.paths:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                if number % self.world == self.rank:
                    yield file, group
                number += 1

    def __iter__(self):
        info = get_worker_info()
        for i, (file, group) in enumerate(self._groups()):
            if info is not None and i % info.num_workers != info.id:
                continue
            table = file.read_row_group(group, columns=self.columns).to_pydict()
            for values in zip(*(table[c] for c in self.columns)):
                yield {c: torch.tensor(v) for c, v in zip(self.columns, values)}


def create_loader(dataset, args):
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        pin_memory=args.pin_memory,
        prefetch_factor=args.prefetch_factor,
        drop_last=args.drop_last,
    )


def endless(loader):
    while True:
        yield from loader
