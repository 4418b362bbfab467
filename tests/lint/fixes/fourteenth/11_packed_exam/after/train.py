import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from exam import batch_loss, run_exam
from packing import Packed

WORDS = 4096


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        return x + self.mix(self.norm(x))


def build(width=256, depth=4):
    blocks = [Block(width) for _ in range(depth)]
    model = nn.Sequential(nn.Embedding(WORDS, width), *blocks, nn.Linear(width, WORDS)).cuda()
    for part in model:
        if isinstance(part, Block):
            fully_shard(part)
    fully_shard(model)
    return model


def documents(count, seed):
    draw = random.Random(seed)
    return [[draw.randrange(WORDS) for _ in range(draw.randint(20, 3000))] for _ in range(count)]


def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    device = torch.device("cuda", local)

    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    train = iter(Packed(documents(5000, 0), rank, world, 1024, repeat=True))
    held_out = Packed(documents(300, 1), rank, world, 1024, repeat=False)

    for step in range(1, 2001):
        loss, count = batch_loss(model, next(train), device)
        (loss / count).backward()
        opt.step()
        opt.zero_grad()
        if step % 200 == 0:
            score, odd = run_exam(model, held_out, device)
            if rank == 0:
                print(f"step {step}: val loss {score:.4f} ({odd} skipped)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
