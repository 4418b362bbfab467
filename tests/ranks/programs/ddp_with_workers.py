"""DDP with loader workers that are started anew in every epoch."""

import torch
import toy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    rank = toy.begin()
    rows = TensorDataset(toy.batch(0, rows=128))
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, 4, sampler=sampler, num_workers=2)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (inputs,) in loader:
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    del model, optimizer
    toy.end()


main()
