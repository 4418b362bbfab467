"""Wrapped modules on some ranks only."""

import deepspeed
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model, loader):
    return [model(x) for x in loader]


def sample(net):
    return net.module(torch.ones(3))


class Trainer:
    def __init__(self, model, rank):
        self.rank = rank
        self.model = DDP(model)

    def preview(self, x):
        if self.rank == 0:
            return self.model(x)  # LNT103
        return None

    def save(self):
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), "x.pt")


class Given:
    def __init__(self, model):
        self.model = model

    def preview(self, x):
        if dist.get_rank() == 0:
            self.model(x)  # LNT103


def main(model, rank, loader):
    wrapped = DDP(model, device_ids=[rank])
    Given(wrapped).preview(3)
    if rank == 0:
        evaluate(wrapped, loader)  # LNT103
    if rank == 0:
        evaluate(wrapped.module, loader)
    if rank == 0:
        sample(wrapped)
    if rank == 0:
        torch.save(wrapped.state_dict(), "x.pt")


def sharded(model, rank):
    model = FSDP(model)
    if rank == 0:
        torch.save(model.state_dict(), "x.pt")  # LNT103


def gathered(model, rank):
    model = FSDP(model)
    state = model.state_dict()
    if rank == 0:
        torch.save(state, "x.pt")


def with_engine(args, model, rank):
    engine, optimizer, _, _ = deepspeed.initialize(args=args, model=model)
    if rank == 0:
        engine.save_checkpoint("x")  # LNT103


def one_rank(model, x):
    model = DDP(model)
    loss = model(x)
    if dist.get_rank() == 0:
        loss.backward()  # LNT103


def accumulates(model, x, rank):
    model = DDP(model)
    loss = model(x)
    if rank == 0:
        with model.no_sync():
            loss.backward()
