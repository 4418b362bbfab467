import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

from manager import CheckpointManager


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def build(width, depth, mesh):
    model = nn.Sequential(*[Layer(width) for _ in range(depth)]).cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="/scratch/run")
    parser.add_argument("--resume")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()

    dist.init_process_group("cpu:gloo,cuda:nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = build(2048, 16, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    manager = CheckpointManager(args.folder)

    start, tokens = 0, 0
    if args.resume:
        extra = manager.load(args.resume, model, optimizer)
        start, tokens = extra.get("step", 0), extra.get("tokens", 0)
        if "schedule" in extra:
            schedule.load_state_dict(extra["schedule"])

    for step in range(start, args.steps):
        x = torch.randn(4, 2048, 2048, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        tokens += x.size(0) * x.size(1) * dist.get_world_size()
        if (step + 1) % args.save_every == 0:
            extra = {"step": step + 1, "tokens": tokens, "schedule": schedule.state_dict()}
            manager.save(step + 1, model, optimizer, extra)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
