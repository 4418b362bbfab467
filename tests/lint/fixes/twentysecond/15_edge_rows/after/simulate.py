import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from edges import EdgeExchange


class WaveField:
    def __init__(self, height, width, channels, device, rank, world_size, speed=0.4):
        if height % world_size:
            raise ValueError("the rows must divide by the number of processes")
        rows = height // world_size
        g = torch.Generator(device).manual_seed(1234 + rank)
        self.now = torch.rand(1, channels, rows, width, device=device, generator=g)
        self.before = self.now.clone()
        self.edges = EdgeExchange(rank, world_size)
        self.c2 = speed**2
        kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]], device=device)
        self.kernel = kernel.expand(channels, 1, 3, 3).contiguous()

    def laplacian(self):
        wide = F.pad(self.edges.extend(self.now), (1, 1, 0, 0))
        return F.conv2d(wide, self.kernel, groups=self.kernel.size(0))

    def step(self):
        following = 2 * self.now - self.before + self.c2 * self.laplacian()
        self.before, self.now = self.now, following

    def energy(self):
        total = (self.now - self.before).pow(2).sum()
        dist.all_reduce(total)
        return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--height", type=int, default=16384)
    parser.add_argument("--width", type=int, default=16384)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--report", type=int, default=100)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    field = WaveField(args.height, args.width, args.channels, device, rank, world_size)
    for step in range(1, args.steps + 1):
        field.step()
        if step % args.report == 0:
            energy = field.energy()
            if rank == 0:
                print(f"step {step}: energy {energy:.5e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
