import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def run_epoch(model, loader, optimizer=None):
    total = 0.0
    for batch in loader:
        loss = torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        if optimizer is not None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
    return total


def validate(rank, model, loader):
    model.eval()
    with torch.no_grad():
        return run_epoch(model, loader)


def train(rank, world_size, model, train_loader, valid_loader, epochs):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = DDP(model.to(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        model.train()
        run_epoch(model, train_loader, optimizer)
        if rank == 0:
            loss = validate(rank, model, valid_loader)
            print(epoch, loss)
        dist.barrier()
