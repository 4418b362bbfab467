"""Norms over the batches of all ranks: whoever runs the inner module while it trains meets the others."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RANK = int(os.getenv("RANK", -1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(x)


def converted():
    return nn.SyncBatchNorm.convert_sync_batchnorm(Net())


def bare(model):
    return model.module if isinstance(model, DDP) else model


class Board:
    def __init__(self, writer):
        self.writer = writer

    def draws(self, step, model, x):
        if step == 0:
            self.writer.add_graph(torch.jit.trace(bare(model), x[:1]), [])

    def draws_without(self, step, model, x, sync_bn):
        if step == 0 and not sync_bn:
            self.writer.add_graph(torch.jit.trace(bare(model), x[:1]), [])


def trains(loader, writer):
    model = DDP(converted())
    board = Board(writer) if RANK in (-1, 0) else None
    for i, x in enumerate(loader):
        model(x).sum().backward()
        if board is not None:
            board.draws(len(loader) * 2 + i, model, x)  # LNT103


def trains_with_a_setting(loader, writer, sync_bn):
    model = DDP(converted())
    board = Board(writer) if RANK in (-1, 0) else None
    for i, x in enumerate(loader):
        model(x).sum().backward()
        if board is not None:
            board.draws_without(len(loader) * 2 + i, model, x, sync_bn)


def runs_alone(x):
    model = DDP(converted())
    if dist.get_rank() == 0:
        model.module(x)  # LNT103


def runs_alone_in_evaluation(x):
    model = DDP(converted())
    model.eval()
    if dist.get_rank() == 0:
        model.module(x)


def runs_on_all(x):
    model = DDP(converted())
    model.module(x)
    if dist.get_rank() == 0:
        print("done")
