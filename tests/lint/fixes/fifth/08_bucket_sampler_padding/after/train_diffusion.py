import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from sampler import SequentialBucketSampler


def build(dataset, model, cfg):
    sampler = SequentialBucketSampler(
        dataset.buckets, cfg.batch_size_for, dist.get_rank(), dist.get_world_size(), cfg.seed
    )
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=cfg.workers)
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model), sampler, loader


def train(dataset, model, cfg):
    model, sampler, loader = build(dataset, model, cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        for latents, text in loader:
            noise = torch.randn_like(latents)
            loss = (model(latents + noise, text) - noise).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{cfg.out}/epoch_{epoch}")
