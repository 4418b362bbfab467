import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from layout import RowLinear


class Trunk(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--classes", type=int, default=32000)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("tower", "row"))
    tower = mesh.get_local_rank("tower")

    torch.manual_seed(5)
    trunk = nn.parallel.DistributedDataParallel(Trunk(args.width, args.depth).cuda())
    head = None
    if tower == 0:
        head = RowLinear(args.classes, args.width, mesh["row"]).cuda()
    weights = list(trunk.parameters()) + ([] if head is None else list(head.parameters()))
    optimizer = torch.optim.AdamW(weights, lr=3e-4)

    for step in range(args.steps):
        x = torch.randn(16, args.width, device="cuda")
        y = trunk(x)
        loss = y.pow(2).mean() if head is None else head(y).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 and dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
