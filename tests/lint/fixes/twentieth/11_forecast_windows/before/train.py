import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import zarr
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader

from windows import ForecastWindows


@dataclass
class Config:
    path: str = "/data/era5/era5_o96.zarr"
    channels: int = 84
    width: int = 512
    depth: int = 8
    batch: int = 1
    samples_per_epoch: int = 4096
    num_steps: tuple = (1, 10)
    policy: str = "random"
    seed: int = 11
    lr: float = 1e-4
    epochs: int = 16


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 8, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm(x))


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(cfg.channels, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg.width) for _ in range(cfg.depth))
        self.out = nn.Linear(cfg.width, cfg.channels)

    def forward(self, state):
        x = self.embed(state)
        for block in self.blocks:
            x = block(x)
        return state + self.out(x)


def main():
    cfg = Config()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(cfg.seed)
    model = FSDP(Forecaster(cfg).cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    store = zarr.open(cfg.path, mode="r")["data"]
    data = ForecastWindows(store, cfg, dist.get_rank(), dist.get_world_size())
    loader = DataLoader(data, batch_size=None, num_workers=0, pin_memory=True)

    for epoch in range(cfg.epochs):
        for i, (fields, steps) in enumerate(loader):
            fields = fields.cuda(non_blocking=True)
            state, loss = fields[:, 0], 0.0
            for step in range(1, steps + 1):
                state = model(state)
                loss = loss + (state - fields[:, step]).square().mean()
            (loss / steps).backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            if i % 50 == 0 and dist.get_rank() == 0:
                print(f"{epoch:03d} {i:05d} loss {float(loss) / steps:.4e} steps {steps}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
