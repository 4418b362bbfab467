import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from stage import Inlet, Stage

CHUNK, WIDTH, SIZE, CHUNKS = 4, 64, 128, 8


class Down(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, padding=1)

    def forward(self, x):
        skip = F.relu(self.conv(x))
        return {"skip": skip, "low": F.avg_pool2d(skip, 2)}


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU())

    def forward(self, low):
        return {"mid": self.conv(low)}


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2 * WIDTH, 3, 3, padding=1)

    def forward(self, skip, mid):
        return self.conv(torch.cat([skip, F.interpolate(mid, scale_factor=2)], 1))


def make_stage(rank, device):
    full, half = (CHUNK, WIDTH, SIZE, SIZE), (CHUNK, WIDTH, SIZE // 2, SIZE // 2)
    if rank == 0:
        return Stage(Down(), 0, 3, [], {"low": [1], "skip": [2]}, device)
    if rank == 1:
        return Stage(Middle(), 1, 3, [Inlet(0, "low", half)], {"mid": [2]}, device)
    return Stage(Up(), 2, 3, [Inlet(0, "skip", full), Inlet(1, "mid", half)], {}, device)


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    stage = make_stage(dist.get_rank(), device)
    optimizer = torch.optim.AdamW(stage.module.parameters(), lr=1e-4)
    for step in range(1000):
        torch.manual_seed(step)
        clean = torch.rand(CHUNKS, CHUNK, 3, SIZE, SIZE, device=device)
        noisy = clean + 0.1 * torch.randn_like(clean)
        losses = {}
        for n in range(CHUNKS):
            out = stage.forward_chunk(n, noisy[n] if stage.is_first else None)
            if stage.is_last:
                losses[n] = F.mse_loss(out, clean[n]) / CHUNKS
        for n in range(CHUNKS):
            stage.backward_chunk(n, losses.get(n))
        stage.finish()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
