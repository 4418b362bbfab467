"""Wrappers by other names: classes of the project, and what libraries call theirs."""

import horovod.torch as hvd
import ray.train.torch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Passing(DistributedDataParallel):
    def __getattr__(self, name):
        return getattr(super().__getattr__("module"), name)


class Stepping(DistributedDataParallel):
    def forward(self, x):
        return self.module(x)


def passes(net, loader):
    model = Passing(net)
    for x in loader:
        loss = model(x).mean()
        if loss > 3:
            continue  # LNT107
        loss.backward()


def does_it_itself(net, loader):
    model = Stepping(net)
    for x in loader:
        loss = model(x).mean()
        loss.backward()


def prepared(net, loader):
    model = ray.train.torch.prepare_model(net)
    if dist.get_rank() == 0:
        for x in loader:
            model(x).mean().backward()  # LNT103


def with_horovod(net, items):
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    for x in items[hvd.rank() :: hvd.size()]:
        net(x).mean().backward()
        optimizer.step()  # LNT110


def with_horovod_as_often(net, items, steps):
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), 0.1))
    for _ in range(steps):
        net(items).mean().backward()
        optimizer.step()
