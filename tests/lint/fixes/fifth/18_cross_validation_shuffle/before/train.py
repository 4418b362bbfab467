import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from dataset import SpeechDataset


def train_epoch(model, loader, optimizer):
    model.train()
    with model.join():
        for batch in loader:
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()


def cv(model, loader):
    model.eval()
    total, seen = 0.0, 1
    with torch.no_grad():
        for batch in loader:
            total += model(batch).item() * len(batch)
            seen += len(batch)
    return total / seen


def main(configs, model, train_samples, cv_samples):
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_conf = configs["dataset_conf"]
    cv_conf = copy.deepcopy(train_conf)
    cv_conf["spec_aug"] = False
    train_set = SpeechDataset(train_samples, train_conf, rank, world_size)
    cv_set = SpeechDataset(cv_samples, cv_conf, rank, world_size, partition=False)
    train_loader = DataLoader(train_set, batch_size=None)
    cv_loader = DataLoader(cv_set, batch_size=None)
    model = DistributedDataParallel(model.cuda(), broadcast_buffers=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=configs["lr"])
    for epoch in range(configs["max_epoch"]):
        train_epoch(model, train_loader, optimizer)
        loss = cv(model, cv_loader)
        if rank == 0:
            torch.save({"model": model.module.state_dict(), "cv_loss": loss}, f"{epoch}.pt")
