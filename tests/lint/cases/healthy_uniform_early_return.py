import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class SyncConfig:
    enabled: bool = True
    every: int = 10
    ema_decay: float = 0.0
    check_weights: bool = False


def world_size():
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size()


def average(value):
    if world_size() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / world_size()


class WeightAverager:
    def __init__(self, model, config):
        self.model, self.config = model, config
        self.shadow = None
        if config.ema_decay > 0:
            self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def step(self, step):
        if not self.config.enabled or world_size() == 1:
            return
        if step % self.config.every:
            return
        for param in self.model.parameters():
            if not param.requires_grad:
                continue
            dist.all_reduce(param)
            param.div_(world_size())
        if self.shadow is None:
            return
        decay = self.config.ema_decay
        for name, param in self.model.named_parameters():
            self.shadow[name].mul_(decay).add_(param, alpha=1 - decay)
            if self.config.check_weights:
                low, high = self.shadow[name].sum(), self.shadow[name].sum().clone()
                dist.all_reduce(low, op=dist.ReduceOp.MIN)
                dist.all_reduce(high, op=dist.ReduceOp.MAX)
                if not torch.isclose(low, high):
                    raise RuntimeError(f"{name} is not the same on all ranks")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--final-eval", action="store_true")
    args = parser.parse_args()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    averager = WeightAverager(model, SyncConfig(enabled=not args.no_sync, ema_decay=0.99))
    for step in range(args.steps):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averager.step(step)
    if args.final_eval:
        print(average(loss).item())
    if world_size() > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
