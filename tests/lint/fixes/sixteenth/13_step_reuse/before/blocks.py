import torch
import torch.distributed as dist
from torch import nn


class SplitAttention(nn.Module):
    def __init__(self, width, heads, group):
        super().__init__()
        self.heads = heads
        self.group = group
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def _whole(self, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, self._whole(k), self._whole(v)))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class FramesNet(nn.Module):
    def __init__(self, gate, group, width=512, heads=8, depth=12):
        super().__init__()
        self.first = SplitAttention(width, heads, group)
        self.rest = nn.ModuleList(SplitAttention(width, heads, group) for _ in range(depth - 1))
        self.final = nn.Linear(width, width)
        self.gate = gate

    def forward(self, x, level):
        x = self.first(x * (1 + level))
        if self.gate.similar(x):
            return self.final(x + self.gate.kept)
        deep = x
        for block in self.rest:
            deep = block(deep)
        self.gate.remember(x, deep - x)
        return self.final(deep)
