import os

import torch
import torch.distributed as dist
from torch import nn

from packing import assign
from vlm import TinyVLM, shard


def rollouts(step, count=24):
    gen = torch.Generator().manual_seed(step)
    batches = []
    for _ in range(count):
        batch = {
            "tokens": torch.randint(0, 8192, (2, 64), generator=gen),
            "weight": torch.ones(2, 63),
            "pixels": None,
        }
        if torch.rand((), generator=gen) < 0.6:
            batch["pixels"] = torch.rand(2, 3, 64, 64, generator=gen)
        batches.append(batch)
    return batches


def learn(model, optimizer, micro):
    for batch in micro:
        tokens = batch["tokens"].cuda()
        pixels = batch["pixels"].cuda() if batch["pixels"] is not None else None
        logits = model(tokens[:, :-1], pixels)
        nll = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        (nll * batch["weight"].cuda()).mean().div(len(micro)).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return norm


def main(steps=100):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, world = dist.get_rank(), dist.get_world_size()
    model = shard(TinyVLM().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for step in range(steps):
        micro = assign(rollouts(step), world)[rank]
        learn(model, optimizer, micro)
        if rank == 0:
            print("step", step, "micro", len(micro))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
