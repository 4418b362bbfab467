import torch
from torch.optim import Optimizer

from shampoo_distributor import DDPDistributor


class DistributedShampoo(Optimizer):
    def __init__(self, params, lr=1e-2, beta=0.9, epsilon=1e-8):
        super().__init__(params, dict(lr=lr, beta=beta, epsilon=epsilon))
        for group in self.param_groups:
            group["distributor"] = DDPDistributor(group["params"])
            group["momentum"] = {}
            group["step"] = 0

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()

        for group in self.param_groups:
            distributor = group["distributor"]
            blocked_params, blocked_grads = distributor.merge_and_block_gradients()
            group["step"] += 1
            directions = self._compute_search_directions(group, blocked_params, blocked_grads)
            if directions:
                torch._foreach_mul_(directions, -group["lr"])
            distributor.update_params(blocked_params, directions)
        return loss

    def _compute_search_directions(self, group, params, grads):
        directions = []
        for p, g in zip(params, grads):
            m = group["momentum"].setdefault(p, torch.zeros_like(p))
            m.mul_(group["beta"]).add_(g, alpha=1 - group["beta"])
            directions.append(m / (m.norm() + group["epsilon"]))
        return directions
