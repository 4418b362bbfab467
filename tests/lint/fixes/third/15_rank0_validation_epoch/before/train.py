import os

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def evaluate(model, loader, energy_weight, force_weight, device):
    total, n = 0.0, 0
    for batch in loader:
        pred = model(batch.to(device))
        total += float(energy_weight * pred.energy_loss + force_weight * pred.force_loss)
        n += 1
    return {"val_loss": total / max(n, 1)}


def train(cfg, model, ema_model, optimizer, train_loader, val_loader):
    is_distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    rank = int(os.environ.get("RANK", 0))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if is_distributed:
        model = DDP(model, device_ids=[device.index])

    for epoch in range(cfg["n_epochs"]):
        for batch in train_loader:
            loss = model(batch.to(device)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            ema_model.update(model)

        train_loader.sampler.set_start_iter(0)
        if rank == 0:
            metrics = evaluate(ema_model, val_loader, cfg["energy_weight"], cfg["force_weight"], device)
            wandb.log(metrics | {"epoch": epoch})
            torch.save(ema_model.state_dict(), f"{cfg['ckpt']}/{epoch}.pt")

    if is_distributed:
        dist.destroy_process_group()
