"""Early stopping on a metric of this rank."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model, loader):
    total = 0.0
    for x in loader:
        total += model(x).item()
    return total


def evaluate_all(model, loader):
    total = torch.zeros(())
    for x in loader:
        total += model(x).sum()
    dist.all_reduce(total)
    return total.item()


def local(model, loader, optimizer):
    model = DDP(model)
    best = 1e9
    for epoch in range(10):
        for x in loader:
            model(x).sum().backward()
        score = evaluate(model, loader)
        if score > best:
            break  # LNT108
        best = score


def shared(model, loader):
    model = DDP(model)
    best = 1e9
    for epoch in range(10):
        for x in loader:
            model(x).sum().backward()
        score = evaluate_all(model, loader)
        if score > best:
            break
        best = score
