import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from pipeline import Prefetcher
from table import SplitTable


def rows_of(files, size, device):
    for file in files:
        day = torch.load(file, map_location=device)
        for at in range(0, len(day["ids"]), size):
            yield {name: column[at:at + size] for name, column in day.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", required=True)
    parser.add_argument("--batch", type=int, default=4096)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    files = sorted(Path(args.days).glob("*.pt"))[dist.get_rank()::dist.get_world_size()]
    table = SplitTable(1_000_000, 64).to(device)
    dense = DDP(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device))
    opt = torch.optim.Adagrad([*table.parameters(), *dense.parameters()], lr=0.02)
    pipeline = Prefetcher(table, dense, opt)
    stream, losses = rows_of(files, args.batch, device), []
    try:
        while True:
            losses.append(pipeline.progress(stream))
    except StopIteration:
        print(dist.get_rank(), len(losses), torch.stack(losses).mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
