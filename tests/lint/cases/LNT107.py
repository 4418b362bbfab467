"""Steps that a rank skips because of its own batch."""

import math

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer):
    model = DDP(model)
    for x in loader:
        loss = model(x).mean()
        if torch.isnan(loss):
            continue  # LNT107
        loss.backward()
        optimizer.step()


def train_if(model, loader, criterion):
    model = DDP(model)
    for x, y in loader:
        loss = criterion(model(x), y)
        if loss.item() > 0:
            loss.backward()  # LNT107


def one_epoch(model, loader, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        if not math.isfinite(loss.item()):
            continue  # LNT107
        loss.backward()


def another_epoch(model, loader, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        if not math.isfinite(loss.item()):
            continue
        loss.backward()


def main(model, loader, criterion):
    wrapped = DDP(model)
    one_epoch(wrapped, loader, criterion)
    another_epoch(model, loader, criterion)


def together(model, loader):
    model = DDP(model)
    for x in loader:
        loss = model(x).mean()
        bad = torch.isnan(loss)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad:
            continue
        loss.backward()


def stops(model, loader):
    model = DDP(model)
    for x in loader:
        loss = model(x).mean()
        if torch.isnan(loss):
            raise ValueError("the loss is not finite")
        loss.backward()


def logs(model, loader):
    model = DDP(model)
    for x in loader:
        loss = model(x).mean()
        if loss > 10:
            print("large")
        loss.backward()


def counts(model, loader, every):
    model, state = DDP(model), {"step": 0, "loss": 0.0}
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        state["step"] += 1
        state["loss"] += loss.item()
        if state["step"] % every == 0:
            dist.barrier()
