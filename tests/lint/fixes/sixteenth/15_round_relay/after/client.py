import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from link import ServerLink
from relay import Relay


def fit(model, opt, steps=100):
    for _ in range(steps):
        x = torch.randn(64, 20)
        loss = (model(x).squeeze(-1) - x.sum(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


@torch.no_grad()
def score(model):
    x = torch.randn(512, 20)
    error = (model.module(x).squeeze(-1) - x.sum(1)).abs().mean()
    dist.all_reduce(error)
    return {"error": error / dist.get_world_size()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = DDP(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    relay = Relay(ServerLink(args.server))
    while (order := relay.next_task())["kind"] != "stop":
        model.module.load_state_dict(order["params"])
        if order["kind"] == "fit":
            fit(model, opt)
            relay.report(model.module.state_dict())
        else:
            relay.report(score(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
