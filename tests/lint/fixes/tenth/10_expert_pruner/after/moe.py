import torch
import torch.nn as nn


class MoELayer(nn.Module):
    def __init__(self, dim, experts):
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))
        self.observer = None

    def restrict(self, keep):
        self.experts = nn.ModuleList(self.experts[i] for i in keep)
        for p in self.router.parameters():
            p.data = p.data[keep]

    def forward(self, x):
        gate, pick = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (pick == i).nonzero().squeeze(-1)
            if rows.numel():
                y = expert(x[rows])
                out[rows] = gate[rows, None] * y
                if self.observer is not None:
                    self.observer(i, gate[rows], y)
        return x + out


class TwoTowers(nn.Module):
    def __init__(self, dim=128, experts=16):
        super().__init__()
        self.code = nn.ModuleList(MoELayer(dim, experts) for _ in range(3))
        self.prose = nn.ModuleList(MoELayer(dim, experts) for _ in range(3))

    def forward(self, x, kind):
        for layer in self.code if kind == "code" else self.prose:
            x = layer(x)
        return x
