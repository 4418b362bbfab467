import argparse
import os
import pathlib

import torch
import torch.distributed as dist

from checkpoint import ShardCheckpoint
from config import DistributedConfig, ModelConfig


class FlatModel:
    def __init__(self, config: ModelConfig, device):
        self.config = config
        self.device = device
        c = config
        self.numel = c.num_layers * 12 * c.hidden_size**2
        lo, hi = self.bounds(c.distributed.rank, c.distributed.world_size)
        self._shards = {n: torch.zeros(hi - lo, device=device) for n in ("weights", "exp_avg", "exp_avg_sq")}

    def bounds(self, rank, world):
        size = -(-self.numel // world)
        return min(rank * size, self.numel), min((rank + 1) * size, self.numel)

    def shards(self):
        return self._shards

    def full_weights(self):
        world = self.config.distributed.world_size
        size = -(-self.numel // world)
        mine = torch.nn.functional.pad(self._shards["weights"], (0, size - self._shards["weights"].numel()))
        out = torch.empty(world * size, device=self.device)
        dist.all_gather_into_tensor(out, mine)
        return out[: self.numel]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    layout = DistributedConfig(world_size=dist.get_world_size(), rank=dist.get_rank())
    config = ModelConfig(num_layers=args.layers, distributed=layout)
    model = FlatModel(config, torch.device("cuda", torch.cuda.current_device()))
    ShardCheckpoint(model).load(args.path)
    norm = model.full_weights().norm().item()
    print(f"rank {layout.rank}: {model.numel} weights, norm {norm:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
