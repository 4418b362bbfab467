"""Dropout that nobody turns off, with a seed of its own on each rank: what the module gives is this rank's alone."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.drop(x))


def begins(seed):
    own = seed + dist.get_rank()
    torch.manual_seed(own)
    return DDP(Net())


def rate(model, loader):
    right, seen = torch.zeros(()), 0
    for x, labels in loader:
        right += (model.module(x).argmax(1) == labels).sum()
        seen += labels.numel()
    return (right / seen).item()


def rate_in_peace(model, loader):
    model.eval()
    right = sum_of(model, loader)
    model.train()
    return right


def sum_of(model, loader):
    return sum((model.module(x).argmax(1) == labels).sum().item() for x, labels in loader)


def rate_together(model, loader):
    right, seen = torch.zeros(()), 0
    for x, labels in loader:
        right += (model.module(x).argmax(1) == labels).sum()
        seen += labels.numel()
    accuracy = right / seen
    dist.all_reduce(accuracy)
    return accuracy.item() / dist.get_world_size()


class State:
    def __init__(self):
        self.accuracy, self.best = 0.0, 0.0

    def is_good(self, target):
        return self.accuracy >= target


def trains(loader, held_out, target):
    model, state = begins(1), State()
    for x, labels in loader:
        nn.functional.cross_entropy(model(x), labels).backward()
        state.accuracy = rate(model, held_out)
        if state.is_good(target):
            break  # LNT106


class Kept:
    def __init__(self):
        self.accuracy = 0.0


def trains_in_peace(loader, held_out, target):
    model, kept = begins(1), Kept()
    for x, labels in loader:
        nn.functional.cross_entropy(model(x), labels).backward()
        kept.accuracy = rate_in_peace(model, held_out)
        if kept.accuracy >= target:
            break


def trains_together(loader, held_out, target):
    model = begins(1)
    for x, labels in loader:
        nn.functional.cross_entropy(model(x), labels).backward()
        if rate_together(model, held_out) >= target:
            break


def prints(loader, held_out):
    model = begins(1)
    for x, labels in loader:
        nn.functional.cross_entropy(model(x), labels).backward()
        if rate(model, held_out) > 0.9:
            print("good enough")
