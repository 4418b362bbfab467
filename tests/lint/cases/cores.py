"""A module that somebody makes, on the core of a TPU: its scores are of this core's batches."""

import timm
import torch
import torch_xla.core.xla_model as xm


def score(model, loader):
    model.eval()
    hits, seen = 0, 0
    for image, label in loader:
        hits += (model(image).argmax(1) == label).sum()
        seen += label.size(0)
    return hits.item() / seen


def trains(loader, loss_fn):
    device = xm.xla_device()
    model = timm.create_model("resnet18").to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * xm.xrt_world_size())
    best = 0.0
    for image, label in loader:
        loss_fn(model(image), label).backward()
        xm.optimizer_step(optimizer)
        now = score(model, loader)
        if now > best:
            best = now
            xm.save(model.state_dict(), "best.pt")  # LNT107


def trains_by_all(loader, loss_fn):
    device = xm.xla_device()
    model = timm.create_model("resnet18").to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * xm.xrt_world_size())
    best = 0.0
    for image, label in loader:
        loss_fn(model(image), label).backward()
        xm.optimizer_step(optimizer)
        now = xm.mesh_reduce("score", score(model, loader), sum)
        if now > best:
            best = now
            xm.save(model.state_dict(), "best.pt")
