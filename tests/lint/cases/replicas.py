"""Modules without a wrapper on the cores of a TPU: what each makes of its own share decides for that core alone."""

import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x):
        return self.layer(x)


def step(model, batch, optimizer):
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    xm.optimizer_step(optimizer)
    return loss


def score(model, loader, device):
    total, count = 0.0, 0
    for x, y in pl.ParallelLoader(loader, [device]).per_device_loader(device):
        total += nn.functional.mse_loss(model(x), y).item()
        count += 1
    return total / count


def keeps_the_best(loader, device, epochs):
    model = Net().to(device)
    best = float("inf")
    for _ in range(epochs):
        loss = score(model, loader, device)
        if loss < best:
            best = loss
            xm.save(model.state_dict(), "best.pt")  # LNT107


def stops_early(loader, device, epochs):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).to(device)
    for _ in range(epochs):
        with torch.no_grad():
            losses = [nn.functional.mse_loss(model(x), y).item() for x, y in loader]
        if sum(losses) / len(losses) < 0.1:
            break  # LNT108
        xm.rendezvous("epoch")


def keeps_the_best_of_all(loader, device, epochs):
    model = Net().to(device)
    best = float("inf")
    for _ in range(epochs):
        loss = xm.mesh_reduce("loss", score(model, loader, device), max)
        if loss < best:
            best = loss
            xm.save(model.state_dict(), "best.pt")


def saves_each_epoch(loader, device, epochs):
    model = Net().to(device)
    best = float("inf")
    for _ in range(epochs):
        loss = score(model, loader, device)
        if loss < best:
            best = loss
            print("better", best)
        xm.save(model.state_dict(), "last.pt")


def saves_where_it_is(loader, device, epochs, every):
    model = Net().to(device)
    for epoch in range(epochs):
        for batch in loader:
            out = model(batch[0])
            if out is not None and out.shape[0] > 1:
                xm.mark_step()
        if epoch % every == 0:
            xm.save(model.state_dict(), "last.pt")


def on_the_host(data):
    model = Net()  # not of a core: all have the same
    if model(data).mean() > 0:
        xm.rendezvous("begun")
