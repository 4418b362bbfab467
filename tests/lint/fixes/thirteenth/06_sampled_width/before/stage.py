import torch
import torch.distributed as dist
import torch.nn as nn

from tokens import TokenWire


class Stage:
    def __init__(self, width, vocab, ahead, device):
        self.device = device
        self.width = width
        self.ahead = ahead
        self.body = nn.Linear(width, width).to(device)
        self.head = nn.Linear(width, vocab).to(device)
        self.wire = TokenWire(ahead, device)
        self.drafts = None

    def _inputs(self, rows):
        if dist.get_rank() == 0:
            return torch.randn(rows, self.width, device=self.device)
        h = torch.empty(rows, self.width, device=self.device)
        dist.recv(h, src=dist.get_rank() - 1)
        return h

    def _plain(self, logits):
        return logits.argmax(-1, keepdim=True)

    def _verify(self, logits):
        best = logits.argmax(-1, keepdim=True)
        kept = torch.where(self.drafts == best, self.drafts, torch.full_like(self.drafts, -1))
        return torch.cat([best, kept], dim=-1)

    def turn(self, rows):
        h = self.body(self._inputs(rows))
        if not self.wire.is_last:
            dist.send(h.contiguous(), dst=dist.get_rank() + 1)
            return self.wire.await_tokens(rows)
        logits = self.head(h)
        sampled = self._plain(logits) if self.drafts is None else self._verify(logits)
        self.drafts = logits.topk(self.ahead, dim=-1).indices
        return self.wire.share(sampled)
