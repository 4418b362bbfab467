import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
import torch.nn as nn

from moe import MoELayer


class SeqRegressor(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.inp = nn.Linear(4, dim)
        self.moe = MoELayer(dim, 4 * dim)
        self.head = nn.Linear(dim, 1)

    def forward(self, x):
        return self.head(self.moe(torch.relu(self.inp(x))))


def make_batch(n, device):
    x = torch.rand(n, 16, 4, device=device) * 2 - 1
    y = (x.prod(dim=-1, keepdim=True) + x.sum(dim=-1, keepdim=True).sin())
    return x, y


def ds_config(args):
    return {
        "train_micro_batch_size_per_gpu": args.batch_size,
        "optimizer": {"type": "Adam", "params": {"lr": args.lr}},
        "zero_optimization": {"stage": 0},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()

    deepspeed.init_distributed()
    torch.cuda.set_device(args.local_rank)
    model = SeqRegressor()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=ds_config(args))
    is_main = dist.get_rank() == 0

    for step in range(args.steps):
        x, y = make_batch(args.batch_size, engine.device)
        loss = nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        if is_main and step % 50 == 0:
            print(f"step {step:4d}  loss {loss.item():.4f}")

    engine.eval()
    torch.manual_seed(7)
    x, y = make_batch(8, engine.device)
    with torch.no_grad():
        pred = engine(x)
    if is_main:
        for i in range(4):
            print(f"target {y[i, 0].item():+.3f}  predicted {pred[i, 0].item():+.3f}")
        print(f"held-out mse {nn.functional.mse_loss(pred, y).item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
