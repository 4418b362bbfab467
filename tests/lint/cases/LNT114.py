"""A loss that is a constant where the batch has nothing in it."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def loss_of(pred, target, mask):
    if mask.sum() == 0:
        return torch.zeros(1, requires_grad=True)  # LNT114
    return (pred - target)[mask].pow(2).mean()


def with_all(pred, target, mask):
    if mask.sum() == 0:
        return (pred * 0).sum()
    return (pred - target)[mask].pow(2).mean()


def by_a_setting(args):
    if args.empty:
        return torch.zeros(1, requires_grad=True)
    return None


def train(model, loader):
    model = DDP(model)
    for x, target, mask in loader:
        loss_of(model(x), target, mask).backward()
        with_all(model(x), target, mask).backward()
        by_a_setting(x)
