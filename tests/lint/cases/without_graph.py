"""A constant in place of what other ranks have a graph for, given to what makes collectives in its backward."""

import torch
import torch.distributed as dist
import torch.nn as nn


class Deal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        out = rows.new_empty(rows.shape[0] // dist.get_world_size(), rows.shape[1])
        dist.reduce_scatter_tensor(out, rows.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] * dist.get_world_size(), grad.shape[1])
        dist.all_gather_into_tensor(out, grad.contiguous())
        return out


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def deal(rows):
    return Deal.apply(rows)


class Bank(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x):
        weight, pick = self.router(x).softmax(-1).max(-1)
        total = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (pick == i).nonzero().flatten()
            if rows.numel() == 0:
                continue
            total = total.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return x + Deal.apply(total)  # LNT117

    def in_one(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        if rows.numel() > 0:
            out = self.experts[0](x[rows])
        else:
            out = x.new_zeros(0, x.shape[1])
        return deal(out)  # LNT117

    def begun_empty(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        out = torch.zeros(8, 8)
        if rows.numel():
            out = self.experts[0](x[rows])
        return Deal.apply(out)  # LNT117


class Split(nn.Module):
    def __init__(self, tower):
        super().__init__()
        self.tower = tower

    def forward(self, images):
        rank, world = dist.get_rank(), dist.get_world_size()
        own = images[rank::world]
        rows = self.tower(own) if rank < 3 else images.new_zeros(0, 4)
        return deal(rows)  # LNT117


# Right: all have a graph, or none, or the backward makes nothing.


class Whole(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.aux = nn.Linear(width, width)

    def forward(self, x):
        weight, pick = self.router(x).softmax(-1).max(-1)
        total = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (pick == i).nonzero().flatten()
            if rows.numel() == 0:
                continue
            total = total.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        if not total.requires_grad:
            total = total + self.experts[0](x[:1]).sum() * 0.0
        return x + Deal.apply(total)

    def with_x(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        total = torch.zeros_like(x)
        if rows.numel():
            total = total + self.experts[0](x)
        return Deal.apply(x + total)

    def of_nothing(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        if rows.numel():
            out = self.aux(x)
        else:
            out = self.aux(torch.zeros_like(x[:1]))[:0]
        return Deal.apply(out)

    def halved(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        out = torch.zeros_like(x)
        if rows.numel():
            out = self.aux(x)
        return Half.apply(out)

    def by_setting(self, x, use):
        out = torch.zeros_like(x)
        if use:
            out = self.aux(x)
        return Deal.apply(out)

    @torch.no_grad()
    def for_answers(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        out = torch.zeros_like(x)
        if rows.numel():
            out = self.aux(x)
        return Deal.apply(out)

    def filled(self, x, pick):
        rows = (pick == 0).nonzero().flatten()
        out = torch.zeros_like(x)
        if rows.numel():
            out[rows] = x[rows]
        return self.aux(Deal.apply(out))
