import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        return self.up(x)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x, mask):
        for i in mask.sum(-1).nonzero().flatten().tolist():
            x = x + self.experts[i](x)  # LNT111
        return x


class Skipped(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x, mask):
        for i in range(4):
            (rows,) = torch.where(mask[i])
            if rows.numel() == 0:
                continue  # LNT111
            x = x + self.experts[i](x)
        return x


class Dummy(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([Expert() for _ in range(4)])

    def forward(self, x, mask):
        for i in range(4):
            (rows,) = torch.where(mask[i])
            if rows.numel() == 0:
                x = x + 0.0 * self.experts[i](x[:1]).sum()
            else:
                x = x + self.experts[i](x)
        return x


class Fixed(nn.Module):
    def __init__(self, deep):
        super().__init__()
        self.deep = deep
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if self.deep else x


def shard(model):
    return fully_shard(model)
