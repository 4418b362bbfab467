import math

import torch
from torch import nn


def share_out(total, parts):
    each, rest = divmod(total, parts)
    return [each + (i < rest) for i in range(parts)]


class SlicedExperts(nn.Module):
    def __init__(self, width, experts, exchange, limit):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, width) / width)
        self.exchange = exchange
        self.limit = limit

    def _pass(self, rows, sizes):
        everything = self.exchange.collect(rows, sizes)
        weight = self.gate(everything).softmax(-1)
        mixed = torch.einsum("nd,xde,nx->ne", everything, self.up, weight)
        return self.exchange.give_back(mixed, sizes)

    def forward(self, rows, counts):
        parts = max(1, math.ceil(sum(counts) / self.limit))
        if parts == 1:
            return self._pass(rows, counts)
        table = [share_out(count, parts) for count in counts]
        mine = table[self.exchange.rank]
        pieces = rows.split(mine)
        outs = []
        for i in range(parts):
            sizes = [row[i] or row[0] for row in table]
            piece = pieces[i] if mine[i] else pieces[0]
            out = self._pass(piece, sizes)
            outs.append(out[: mine[i]])
        return torch.cat(outs)
