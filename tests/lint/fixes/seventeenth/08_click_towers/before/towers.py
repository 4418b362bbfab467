import argparse
import glob
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker_data import DataLoaderArgs, ParquetRows, create_loader, endless


class Towers(nn.Module):
    def __init__(self, users, items, dim=64):
        super().__init__()
        self.user = nn.Sequential(nn.Embedding(users, dim), nn.Linear(dim, dim))
        self.item = nn.Sequential(nn.Embedding(items, dim), nn.Linear(dim, dim))

    def forward(self, user, item):
        return F.normalize(self.user(user), dim=-1), F.normalize(self.item(item), dim=-1)


def in_batch_loss(users, items, temperature=0.05):
    world, rank = dist.get_world_size(), dist.get_rank()
    others = torch.empty(world * items.shape[0], items.shape[1], device=items.device)
    dist.all_gather_into_tensor(others, items.detach())
    parts = list(others.chunk(world))
    parts[rank] = items
    logits = users @ torch.cat(parts).T / temperature
    target = torch.arange(len(users), device=users.device) + rank * len(users)
    return F.cross_entropy(logits, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", required=True)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=50_000)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    loader = create_loader(ParquetRows(sorted(glob.glob(args.files)), ["user", "item"]), DataLoaderArgs())
    model = DistributedDataParallel(Towers(args.users, args.items).cuda(), device_ids=[local])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

    stream = endless(loader)
    for step in range(args.steps):
        batch = next(stream)
        users, items = model(batch["user"].cuda(), batch["item"].cuda())
        loss = in_batch_loss(users, items)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and step % 100 == 0:
            print(step, loss.item())
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "towers.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
