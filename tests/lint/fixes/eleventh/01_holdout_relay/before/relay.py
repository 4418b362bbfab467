import torch
import torch.distributed as dist


class Relay:
    """Moves activations along a chain of stages, one stage per rank."""

    def __init__(self, stage, width, device):
        self.stage = stage.to(device)
        self.width = width
        self.device = device
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.world - 1

    def _arrive(self, rows):
        buf = torch.empty(rows, self.width, device=self.device)
        dist.recv(buf, src=self.rank - 1)
        return buf

    @torch.no_grad()
    def forward_only(self, batches, keep):
        kept = []
        for x, y in batches:
            h = x.to(self.device) if self.first else self._arrive(x.shape[0])
            out = self.stage(h)
            if self.last:
                kept.append(keep(out, y.to(self.device)))
            else:
                dist.send(out.contiguous(), dst=self.rank + 1)
        return kept
