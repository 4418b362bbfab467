import torch
from torch import nn


class TopOneExperts(nn.Module):
    def __init__(self, dim, num_local_experts):
        super().__init__()
        self.gate = nn.Linear(dim, num_local_experts)
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_local_experts))

    def forward(self, x):
        score, index = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            picked = index == i
            if picked.any():
                out[picked] = expert(x[picked])
        return out * score.unsqueeze(-1)
