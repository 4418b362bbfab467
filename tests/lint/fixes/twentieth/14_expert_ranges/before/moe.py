"""A layer whose experts are spread over a group of ranks."""
import torch
import torch.distributed as dist
from torch import nn

from quant import QuantLinear


class Expert(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up = QuantLinear(width, inner, bias=False)
        self.down = QuantLinear(inner, width, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.up(x)))


class ExpertLayer(nn.Module):
    def __init__(self, width, inner, experts, group):
        super().__init__()
        self.group = group
        self.parts = dist.get_world_size(group)
        self.local = experts // self.parts
        self.first = dist.get_rank(group) * self.local
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(self.local))

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        weight, chosen = self.router(flat).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            rows, slot = (chosen == self.first + i).nonzero(as_tuple=True)
            if rows.numel():
                out.index_add_(0, rows, expert(flat[rows]) * weight[rows, slot, None])
        dist.all_reduce(out, group=self.group)
        return x + out.view_as(x)

    def share_local_amax(self):
        for part, kind in [(p, k) for p in ("up", "down") for k in ("input_quantizer", "weight_quantizer")]:
            quantizers = [getattr(getattr(e, part), kind) for e in self.experts]
            seen = [q.amax for q in quantizers if q.amax is not None]
            high = torch.stack(seen).amax() if seen else torch.zeros((), device="cuda")
            for q in quantizers:
                if q.amax is not None:
                    q.amax.copy_(high)
