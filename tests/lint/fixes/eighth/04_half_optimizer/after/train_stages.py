import os

import torch
import torch.distributed as dist
from torch import nn

from half_optimizer import HalfOptimizer
from topology import Grid


def run_micro(stage, grid, opt, x, y):
    here = dist.get_rank()
    if not grid.first:
        x = torch.empty(32, 128, device="cuda", dtype=torch.half)
        dist.recv(x, src=here - grid.replicas)
        x.requires_grad_(True)
    out = stage(x)
    if grid.last:
        opt.backward(nn.functional.mse_loss(out.float(), y))
    else:
        dist.send(out.detach(), dst=here + grid.replicas)
        grad = torch.empty_like(out)
        dist.recv(grad, src=here + grid.replicas)
        opt.backward(out, grad)
    if not grid.first:
        dist.send(x.grad, dst=here - grid.replicas)


def main(steps=5000):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    grid = Grid(stages=2)
    stage = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128)).cuda().half()
    opt = HalfOptimizer(torch.optim.SGD(stage.parameters(), lr=0.05), grid)
    for step in range(steps):
        x = torch.randn(32, 128, device="cuda", dtype=torch.half)
        y = torch.randn(32, 128, device="cuda")
        run_micro(stage, grid, opt, x, y)
        stepped, norm = opt.step()
        if step % 100 == 0 and grid.last:
            print(step, stepped, norm, opt.scale)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
