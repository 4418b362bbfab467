import argparse
import os

import h5py
import torch
import torch.distributed as dist
from torch import nn

from halo import StripHalo


class StripConv(nn.Module):
    def __init__(self, c_in, c_out, kernel, halo):
        super().__init__()
        self.halo = halo
        self.conv = nn.Conv2d(c_in, c_out, kernel, padding=(0, kernel // 2))

    def forward(self, x):
        return self.conv(self.halo.exchange(x))


class Stepper(nn.Module):
    def __init__(self, channels, hidden, kernel=5):
        super().__init__()
        halo = StripHalo(kernel // 2)
        self.encode = StripConv(channels, hidden, kernel, halo)
        self.mix = nn.ModuleList(StripConv(hidden, hidden, kernel, halo) for _ in range(3))
        self.decode = nn.Conv2d(hidden, channels, 1)

    def forward(self, x):
        h = torch.relu(self.encode(x))
        for layer in self.mix:
            h = h + torch.relu(layer(h))
        return x + self.decode(h)


def load_strip(path, rank, size):
    with h5py.File(path) as file:
        rows = file["state"].shape[-2] // size
        return torch.from_numpy(file["state"][..., rank * rows:(rank + 1) * rows, :])


@torch.no_grad()
def roll_out(model, state, steps, every):
    frames = []
    for step in range(steps):
        state = model(state)
        energy = state.square().sum()
        dist.all_reduce(energy)
        if step % every == 0:
            frames.append(state.cpu())
            if dist.get_rank() == 0:
                print(f"step {step}: energy {energy.item():.4e}")
    return torch.stack(frames)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--every", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Stepper(channels=4, hidden=64).cuda().eval()
    model.load_state_dict(torch.load(args.weights, map_location="cuda"))
    state = load_strip(args.state, rank, size).cuda()
    frames = roll_out(model, state, args.steps, args.every)
    torch.save(frames, f"frames-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
