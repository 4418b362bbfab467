"""What is reduced to one rank is there on that rank alone."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def validate(loader, score):
    total = torch.zeros(2)
    for x, y in loader:
        total[0] += score(x, y)
        total[1] += 1
    dist.reduce(total, 0)
    return (total[0] / total[1]).item()


def validated_together(loader, score):
    total = torch.zeros(2)
    for x, y in loader:
        total[0] += score(x, y)
        total[1] += 1
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def stops_alone(model, loader, score, epochs):
    model = DDP(model)
    best, bad = 1e9, 0
    for _ in range(epochs):
        for x, y in loader:
            model(x).sum().backward()
        loss = validate(loader, score)
        if loss < best:
            best, bad = loss, 0
        else:
            bad += 1
        if bad > 3:
            break  # LNT108


def saves_alone(model, loader, score, epochs):
    best = 1e9
    for _ in range(epochs):
        loss = validate(loader, score)
        if loss < best:
            best = loss
            dist.barrier()  # LNT107


def stops_by_a_sum(flag, model, loader):
    model = DDP(model)
    for x in loader:
        flag = torch.tensor([float(x.sum() > 9)])
        dist.reduce(flag, dst=0)
        if flag.item() > 0:
            break  # LNT108
        model(x).sum().backward()


# Right.


def saves_together(model, loader, score, epochs):
    best = 1e9
    for _ in range(epochs):
        loss = validated_together(loader, score)
        if loss < best:
            best = loss
            dist.barrier()


def logs(model, loader, score, epochs):
    best = 1e9
    for _ in range(epochs):
        loss = validate(loader, score)
        if dist.get_rank() == 0 and loss < best:
            best = loss
            torch.save(model.state_dict(), "best.pt")
        dist.barrier()


def tells_the_others(loader, score):
    total = torch.zeros(1)
    dist.reduce(total, 0)
    dist.broadcast(total, 0)
    if total.item() > 1:
        dist.barrier()


def first_decides(loader, score):
    best = 1e9
    while True:
        loss = validate(loader, score)
        stop = [loss > best]
        dist.broadcast_object_list(stop, src=0)
        if stop[0]:
            break
        best = min(best, loss)
