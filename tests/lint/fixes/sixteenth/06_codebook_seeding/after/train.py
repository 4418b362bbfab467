import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from codebook import Codebook


class Coder(nn.Module):
    def __init__(self, heads=4, width=32):
        super().__init__()
        self.heads = heads
        self.enc = nn.Linear(80, heads * width)
        self.book = Codebook(heads, 512, width)
        self.dec = nn.Linear(heads * width, 80)

    def forward(self, frames):
        split = self.enc(frames).unflatten(-1, (self.heads, -1)).transpose(0, 1)
        quantised, commit = self.book(split)
        return (self.dec(quantised.transpose(0, 1).flatten(1)) - frames).pow(2).mean() + commit


def main(steps=5000):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    coder = DDP(Coder().to(device), device_ids=[device.index], broadcast_buffers=False)
    opt = torch.optim.AdamW(coder.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = coder(torch.randn(2048, 80, device=device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
