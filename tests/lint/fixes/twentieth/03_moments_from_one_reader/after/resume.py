import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

from relay import OptimizerRelay


def build(width, depth, mesh):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return FSDP(
        nn.Sequential(*layers).cuda(),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        use_orig_params=True,
    )


def put_back(optimizer, model, slots):
    for name, param in model.named_parameters():
        entry = slots.get(name)
        if entry is not None:
            optimizer.state[param] = entry


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    dist.init_process_group("cpu:gloo,cuda:nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    replicas = dist.get_world_size() // args.shards
    mesh = init_device_mesh("cuda", (replicas, args.shards), mesh_dim_names=("replicate", "shard"))

    model = build(args.width, args.depth, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    if args.resume:
        put_back(optimizer, model, OptimizerRelay(mesh, device).load(args.resume))

    for step in range(args.steps):
        loss = model(torch.randn(8, args.width, device=device)).square().mean()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
