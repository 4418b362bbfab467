import json
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist


class MemmapWriter:
    def __init__(self, path, num_items, num_scores, *, dtype=np.float32, overwrite=False, distributed=True):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        data_file = self.path / "scores.bin"
        together = distributed and dist.is_initialized()
        rank = dist.get_rank() if together else 0
        if rank == 0 and (overwrite or not data_file.exists()):
            fresh = np.memmap(str(data_file), dtype=dtype, mode="w+", shape=(num_items, num_scores))
            fresh.flush()
            with (self.path / "info.json").open("w") as f:
                json.dump({"num_items": num_items, "num_scores": num_scores}, f)
        if together:
            dist.barrier()
        self.scores = np.memmap(str(data_file), dtype=dtype, mode="r+", shape=(num_items, num_scores))

    def __call__(self, indices, scores):
        self.scores[indices] = scores.cpu().numpy()

    def flush(self):
        self.scores.flush()


def save_scores(path, scores):
    if scores.ndim == 1:
        scores = scores[:, None]
    writer = MemmapWriter(path, len(scores), scores.shape[1], overwrite=True, distributed=False)
    writer(np.arange(len(scores)), scores)
    writer.flush()


def run_queries(trainer, queries, out_dir):
    rank = dist.get_rank() if dist.is_initialized() else 0
    total = trainer.aggregate(queries)
    if rank == 0:
        save_scores(Path(out_dir) / "aggregate", total)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
