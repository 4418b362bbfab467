import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from dispatcher import build_loader


def train(model, records, cfg):
    dist.init_process_group("nccl")
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    model = DistributedDataParallel(model.to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    loader = build_loader(records, cfg.batch_size, device)
    for epoch in range(cfg.epochs):
        for batch in loader:
            loss = model(batch["x"]).sub(batch["y"]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
