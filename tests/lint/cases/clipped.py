"""Gradients of which each rank has a part are clipped by this rank's own loss, or on all ranks."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP


class SpikeGuard:
    def __init__(self, warmup=40):
        self.mean, self.seen, self.warmup = 0.0, 0, warmup

    def is_spike(self, loss):
        self.seen += 1
        spike = self.seen > self.warmup and loss > 2 * self.mean
        if not spike:
            self.mean = 0.9 * self.mean + 0.1 * loss
        return spike

    def apply(self, model, loss):
        if self.is_spike(loss):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # LNT107


def sharded(net):
    for layer in net.layers:
        fully_shard(layer)
    return fully_shard(net)


def by_guard(net, loader, optimizer):
    model = sharded(net)
    guard = SpikeGuard()
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        guard.apply(model, loss.item())
        optimizer.step()


def by_own_loss(net, loader, optimizer):
    fully_shard(net)
    for x in loader:
        loss = net(x).sum()
        loss.backward()
        if loss.item() > 10:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # LNT107
        optimizer.step()


# Healthy.


def on_all(net, loader, optimizer):
    fully_shard(net)
    for step, x in enumerate(loader):
        loss = net(x).sum()
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if mean.item() > 10 or step < 100:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def whole_gradients(net, loader, optimizer):
    model = DDP(net)
    for x in loader:
        loss = model(x).sum()
        loss.backward()
        if loss.item() > 10:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
