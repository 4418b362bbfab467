import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class HaltHead(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(dim, 1)

    def forward(self, x):
        return torch.sigmoid(self.score(x)).squeeze(-1)


class PonderStack(nn.Module):
    def __init__(self, dim, heads, turns, threshold=0.99):
        super().__init__()
        self.block = Block(dim, heads)
        self.halt = HaltHead(dim)
        self.turns = turns
        self.threshold = threshold

    def forward(self, x):
        spent = torch.zeros(x.shape[:2], device=x.device, dtype=x.dtype)
        out = torch.zeros_like(x)
        for turn in range(self.turns):
            x = self.block(x)
            p = self.halt(x)
            running = spent < self.threshold
            last = turn == self.turns - 1
            ending = running & ((spent + p >= self.threshold) | last)
            weight = torch.where(ending, 1 - spent, p) * running
            out = out + weight.unsqueeze(-1) * x
            spent = spent + weight
            if bool((spent >= self.threshold).all()):
                break
        return out
