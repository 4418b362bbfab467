import json
import pathlib

import safetensors
import safetensors.torch
import torch
import torch.distributed as dist

from config import ModelConfig, compare


class ShardCheckpoint:
    def __init__(self, model):
        self.model = model
        self.config = model.config

    def save(self, path: pathlib.Path):
        path.mkdir(parents=True, exist_ok=True)
        rank = self.config.distributed.rank
        if rank == 0:
            (path / "metadata.json").write_text(json.dumps(self.config.to_dict()))
        safetensors.torch.save_file(dict(self.model.shards()), path / f"rank_{rank}.safetensors")
        dist.barrier()

    def load(self, path: pathlib.Path):
        saved = ModelConfig.from_dict(json.loads((path / "metadata.json").read_text()))
        same_layout = not compare(saved, self.config)
        if same_layout:
            self._load_own(path)
        else:
            self._load_overlaps(path, saved)

    def _open(self, path, rank):
        return safetensors.safe_open(path / f"rank_{rank}.safetensors", framework="pt", device=str(self.model.device))

    def _load_own(self, path):
        with self._open(path, self.config.distributed.rank) as f:
            for name, shard in self.model.shards().items():
                shard.copy_(f.get_tensor(name))

    def _load_overlaps(self, path, saved):
        filled = torch.zeros(1, dtype=torch.int64, device=self.model.device)
        begin, end = self.model.bounds(self.config.distributed.rank, self.config.distributed.world_size)
        for rank in range(saved.distributed.world_size):
            lo, hi = self.model.bounds(rank, saved.distributed.world_size)
            first, last = max(lo, begin), min(hi, end)
            if first >= last:
                continue
            with self._open(path, rank) as f:
                for name, shard in self.model.shards().items():
                    piece = f.get_slice(name)[first - lo : last - lo]
                    shard[first - begin : last - begin].copy_(piece)
            filled += last - first
        dist.all_reduce(filled)
        if filled.item() != self.model.numel:
            raise RuntimeError(f"{self.model.numel - filled.item()} values were not found in {path}")
