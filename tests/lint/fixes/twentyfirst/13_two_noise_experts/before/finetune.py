import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from experts import NoiseExperts
from flow_loss import FlowMatching
from latents import LatentFolder


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", required=True)
    p.add_argument("--latents", required=True)
    p.add_argument("--boundary", type=float, default=0.875)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--seed", type=int, default=7)
    args = p.parse_args()

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    experts = NoiseExperts(args.model, args.boundary).cuda().shard(mesh)
    optimizer = torch.optim.AdamW(experts.parameters(), lr=1e-5)
    loss_fn = FlowMatching(experts, args.seed, dist.get_rank())
    data = LatentFolder(args.latents)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, batch_size=1, sampler=sampler, num_workers=2, drop_last=True)

    rollout = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, batch in enumerate(loader):
            micro_batch = i % args.accumulate
            name, loss = loss_fn(batch, rollout, micro_batch)
            (loss / args.accumulate).backward()
            if micro_batch == args.accumulate - 1:
                optimizer.step()
                optimizer.zero_grad()
                rollout += 1
                if dist.get_rank() == 0:
                    print(f"{rollout}: {name} {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
