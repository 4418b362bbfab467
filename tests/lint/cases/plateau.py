"""A loop that ends when the learning rate is small: by a loss of this rank alone, or one of all."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau


def by_own_loss(net, train, val, optimizer):
    model = DDP(net)
    scheduler = ReduceLROnPlateau(optimizer, patience=3)
    for _ in range(100):
        for x, y in train:
            F.l1_loss(model(x), y).backward()
        total = 0.0
        for x, y in val:
            total += F.l1_loss(model(x), y).item()
        scheduler.step(total / len(val))
        lr = optimizer.param_groups[0]["lr"]
        if lr < 1e-6:
            break  # LNT108


class Trainer:
    def __init__(self, net, train, val):
        self.model = DDP(net)
        self.train, self.val = train, val
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.scheduler = ReduceLROnPlateau(self.optimizer, patience=3)

    def loss(self):
        return sum(F.l1_loss(self.model(x), y).item() for x, y in self.val) / len(self.val)

    def fit(self):
        for _ in range(100):
            for x, y in self.train:
                F.l1_loss(self.model(x), y).backward()
            self.scheduler.step(self.loss())
            if self.optimizer.param_groups[0]["lr"] < 1e-6:
                break  # LNT108


# Healthy.


def by_loss_of_all(net, train, val, optimizer):
    model = DDP(net)
    scheduler = ReduceLROnPlateau(optimizer, patience=3)
    for _ in range(100):
        for x, y in train:
            F.l1_loss(model(x), y).backward()
        total = torch.zeros(1)
        for x, y in val:
            total += F.l1_loss(model(x), y).detach()
        dist.all_reduce(total)
        scheduler.step(total.item() / len(val))
        if optimizer.param_groups[0]["lr"] < 1e-6:
            break


def by_steps(net, train, optimizer):
    model = DDP(net)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for epoch in range(100):
        for x, y in train:
            F.l1_loss(model(x), y).backward()
        scheduler.step(epoch)
        if optimizer.param_groups[0]["lr"] < 1e-6:
            break
