import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from era5_datapipe import ERA5Datapipe


def main(model, cfg):
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    pipe = ERA5Datapipe(cfg.train_dir, 1, 1, cfg.batch_size, rank, world_size)
    if rank == 0:
        validation = ERA5Datapipe(cfg.test_dir, 8, 1, 1, 0, 1, samples_per_year=4)
    model = DistributedDataParallel(model.to(device), device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        for fields in pipe:
            fields = torch.from_numpy(fields).to(device)
            loss = (model(fields[:, 0]) - fields[:, 1]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if rank == 0:
            with torch.no_grad():
                errors = [(model.module(torch.from_numpy(f[:, 0]).to(device)).cpu() - f[:, 1]).square().mean() for f in validation]
            print(f"epoch {epoch} validation {sum(errors) / len(errors):.4f}")
        dist.barrier()
