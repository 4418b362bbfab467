import torch
import torch.distributed as dist


class RareSyncAdamW(torch.optim.AdamW):
    """Local steps; the weights and moments are averaged once in a while."""

    def __init__(self, params, lr, weights_every=32, moments_every=96):
        super().__init__(params, lr=lr)
        self.weights_every = weights_every
        self.moments_every = moments_every
        self.updates = 0

    def step(self, closure=None):
        out = super().step(closure)
        self.updates += 1
        return out

    def _average(self, tensors):
        flat = torch.cat([t.reshape(-1).float() for t in tensors])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        at = 0
        for t in tensors:
            t.copy_(flat[at : at + t.numel()].view_as(t))
            at += t.numel()

    @torch.no_grad()
    def sync_if_needed(self):
        params = [p for g in self.param_groups for p in g["params"]]
        if self.updates and self.updates % self.weights_every == 0:
            self._average([p.data for p in params])
        if self.updates and self.updates % self.moments_every == 0:
            for name in ("exp_avg", "exp_avg_sq"):
                self._average([self.state[p].get(name, torch.zeros_like(p)) for p in params])
