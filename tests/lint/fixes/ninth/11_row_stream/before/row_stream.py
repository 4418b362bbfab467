import random
from pathlib import Path

import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset


def shared_file_list(folder, seed):
    box = [None]
    if dist.get_rank() == 0:
        names = sorted(str(p) for p in Path(folder).rglob("*.parquet"))
        random.Random(seed).shuffle(names)
        box = [names]
    dist.broadcast_object_list(box, src=0)
    return box[0]


class RowStream(IterableDataset):
    def __init__(self, folder, seed=17, column="input_ids"):
        files = shared_file_list(folder, seed)
        self.files = files[dist.get_rank()::dist.get_world_size()]
        self.column = column
        self.rng = random.Random(seed)
        self.at = {"file": 0, "group": 0, "rows": []}

    def __iter__(self):
        while self.at["file"] < len(self.files):
            if not self.at["rows"]:
                pf = pq.ParquetFile(self.files[self.at["file"]])
                if self.at["group"] >= pf.num_row_groups:
                    self.at["file"] += 1
                    self.at["group"] = 0
                    continue
                self.at["rows"] = pf.read_row_group(self.at["group"]).column(self.column).to_pylist()
                self.rng.shuffle(self.at["rows"])
                self.at["group"] += 1
            while self.at["rows"]:
                yield torch.as_tensor(self.at["rows"].pop(), dtype=torch.long)
