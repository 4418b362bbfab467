import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from vault import Vault


def build(width=1024, depth=8):
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)]
    net = nn.Sequential(*layers, nn.Linear(width, width)).cuda()
    for layer in net:
        fully_shard(layer)
    return fully_shard(net)


def local_state(net, opt):
    weights = {name: p.to_local().cpu() for name, p in net.state_dict().items()}
    return {"weights": weights, "optimizer": opt.state_dict()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--save-every", type=int, default=500)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    net = build()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    vault = Vault(args.root)
    for step in range(1, args.steps + 1):
        x = torch.randn(32, 1024, device="cuda")
        loss = (net(x) - x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % args.save_every == 0:
            vault.store(step, local_state(net, opt))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
