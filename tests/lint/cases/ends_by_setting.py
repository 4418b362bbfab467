"""A share of the data that goes round for ever by a setting, and is joined to tensors; modules that Fabric sets up."""

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Files(IterableDataset):
    def __init__(self, paths, rank, world, for_ever):
        self.paths = paths[rank::world]
        self.for_ever = for_ever

    def once(self):
        for path in self.paths:
            yield torch.load(path)

    def __iter__(self):
        yield from self.once()
        while self.for_ever:
            yield from self.once()


def loaders(paths, rank, world):
    return DataLoader(Files(paths, rank, world, for_ever=True)), DataLoader(Files(paths, rank, world, for_ever=False))


def scores(net, loader):
    for x in loader:
        net(x)  # LNT110


def scores_of_all(fabric, net, loader):
    batches = iter(loader)
    while True:
        x = next(batches, None)
        ready = torch.tensor(float(x is not None))
        if fabric.all_reduce(ready, reduce_op="min").item() == 0:
            break
        net(x)


def fit(fabric, net, train, val, steps):
    for step, x in enumerate(train):
        if step > steps:
            break
        fabric.backward(net(x).mean())
        if step % 100 == 0:
            scores(net, val)
            scores_of_all(fabric, net, val)


def main(net, paths):
    fabric = Fabric(devices=8)
    fabric.launch()
    net = fabric.setup(net)
    train, val = loaders(paths, fabric.global_rank, fabric.world_size)
    fit(fabric, net, train, val, 1000)


class Worker:
    def __init__(self, net, rank, world):
        self.net, self.rank, self.world = DDP(net), rank, world

    def loader(self, parts):
        mine = parts[self.rank :: self.world]
        return DataLoader(TensorDataset(torch.cat([p["x"] for p in mine])))

    def fit(self, parts):
        for x in self.loader(parts):
            self.net(x).mean().backward()  # LNT110

    def fit_together(self, parts):
        with self.net.join():
            for x in self.loader(parts):
                self.net(x).mean().backward()

    def on_all(self, parts):
        xs = torch.cat([p["x"] for p in parts])
        for x in DataLoader(TensorDataset(xs)):
            self.net(x).mean().backward()
