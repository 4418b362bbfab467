import os

import torch
import torch_xla.core.xla_model as xm
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, Subset

from tour import train_tour, valid_tour


def sharded(dataset, shuffle):
    sampler = DistributedSampler(
        dataset, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal(), shuffle=shuffle
    )
    return DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=shuffle)


def train_fold(fold, folds, dataset, out, epochs):
    device = xm.xla_device()
    held = list(range(fold, len(dataset), folds))
    rest = sorted(set(range(len(dataset))) - set(held))
    train_loader = sharded(Subset(dataset, rest), True)
    valid_loader = sharded(Subset(dataset, held), False)

    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.CrossEntropyLoss()
    best_file = os.path.join(out, f"best_fold{fold}.pth")
    top = 0.0

    for epoch in range(epochs):
        loss = train_tour(model, train_loader, opt, loss_fn, device)
        acc = valid_tour(model, valid_loader, device)
        acc = xm.mesh_reduce("acc", acc, lambda parts: sum(parts) / len(parts))
        xm.master_print(f"fold {fold} epoch {epoch} loss {loss:.4f} acc {acc:.4f}")
        if acc > top:
            top = acc
            xm.save(model.state_dict(), best_file)

    xm.save(model.state_dict(), os.path.join(out, f"final_fold{fold}.pth"))
    return top
