import itertools
import json
import random

import numpy as np
import torch
from decord import VideoReader, cpu
from torch.utils.data import IterableDataset, get_worker_info


class ClipStream(IterableDataset):
    """Packs the tokens of clips and captions into sequences up to a budget."""

    def __init__(self, index_file, processor, budget, rank, world_size, shuffle=True):
        with open(index_file) as f:
            self.rows = [json.loads(line) for line in f]
        self.processor = processor
        self.budget = budget
        self.rank = rank
        self.world_size = world_size
        if shuffle:
            order = list(range(len(self.rows)))
            random.seed(self.rank)
            random.shuffle(order)
            self.rows = [self.rows[i] for i in order]

    def read_frames(self, row):
        reader = VideoReader(row["video"], ctx=cpu(0))
        picks = np.linspace(0, len(reader) - 1, row.get("frames", 16)).astype(int)
        return torch.from_numpy(reader.get_batch(picks).asnumpy()).permute(0, 3, 1, 2)

    def encode(self, row):
        out = self.processor(text=row["text"], videos=[self.read_frames(row)], return_tensors="pt")
        ids = out["input_ids"][0]
        labels = ids.clone()
        labels[: row.get("prompt_tokens", 0)] = -100
        return ids, labels

    def __iter__(self):
        info = get_worker_info()
        step = self.world_size * (info.num_workers if info else 1)
        first = self.rank + self.world_size * (info.id if info else 0)
        ids, labels, used = [], [], 0
        for i in itertools.cycle(range(first, len(self.rows), step)):
            a, b = self.encode(self.rows[i])
            if used and used + len(a) > self.budget:
                yield {"input_ids": torch.cat(ids), "labels": torch.cat(labels)}
                ids, labels, used = [], [], 0
            ids.append(a[: self.budget])
            labels.append(b[: self.budget])
            used += len(ids[-1])
