import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from run_dirs import dump_json, open_run_dir
from snapshots import write_snapshot


def batches(seed, device):
    gen = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(64, 32, generator=gen)
        yield x.to(device), (x.sum(1) > 0).long().to(device)


def evaluate(model, source, rounds=8):
    model.eval()
    hits = torch.zeros(2, device=next(model.parameters()).device)
    with torch.no_grad():
        for _ in range(rounds):
            x, y = next(source)
            hits[0] += (model.module(x).argmax(1) == y).sum()
            hits[1] += y.numel()
    dist.all_reduce(hits)
    model.train()
    return (hits[0] / hits[1]).item()


def train_once(args, run_dir, device):
    model = DDP(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2)).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_source = batches(100 + dist.get_rank(), device)
    valid_source = batches(900 + dist.get_rank(), device)
    evals, spent = [], 0.0
    if run_dir is not None:
        dump_json(os.path.join(run_dir, "flags.json"), vars(args))
    for step in range(1, args.steps + 1):
        begin = time.time()
        x, y = next(train_source)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spent += time.time() - begin
        if step % args.eval_every == 0:
            evals.append((step, evaluate(model, valid_source)))
            if run_dir is not None:
                write_snapshot(model, optimizer, step, evals, run_dir)
            dist.barrier()
    score = torch.tensor(spent, device=device)
    dist.all_reduce(score, op=dist.ReduceOp.MAX)
    return score.item(), evals


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="~/runs")
    parser.add_argument("--workload", default="toy")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--eval-every", type=int, default=500)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    run_dir = open_run_dir(args.root, args.workload)
    score, evals = train_once(args, run_dir, device)
    if dist.get_rank() == 0:
        print("score", score, "last", evals[-1:])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
