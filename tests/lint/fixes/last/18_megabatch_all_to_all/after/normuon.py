import torch
from torch.optim import Optimizer

from megabatch import megabatch_orthogonalize


class NorMuon(Optimizer):
    def __init__(self, params, process_group, lr=0.02, mu=0.95):
        super().__init__(params, dict(lr=lr, mu=mu))
        self.process_group = process_group

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(tuple(p.shape), []).append(p)
            for shape in sorted(by_shape):
                params = by_shape[shape]
                updates = []
                for p in params:
                    m = self.state[p].setdefault("momentum", torch.zeros_like(p))
                    m.mul_(group["mu"]).add_(p.grad)
                    updates.append(m)
                for p, u in zip(params, megabatch_orthogonalize(updates, self.process_group)):
                    local = p.to_local() if hasattr(p, "to_local") else p
                    local.add_(u, alpha=-group["lr"])
