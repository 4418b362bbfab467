import torch
import torch.distributed as dist

from param_groups import get_param_groups, stats_group


class ChainedOptimizer:
    def __init__(self, model_chunks, overrides, lr, clip_grad):
        self.clip_grad = clip_grad
        self.chained = []
        for param_group in get_param_groups(model_chunks, overrides, lr):
            inner = torch.optim.AdamW(param_group["params"], lr=param_group["lr"])
            self.chained.append((inner, stats_group(param_group)))

    def get_grad_norm(self):
        total = 0.0
        for inner, group in self.chained:
            sq = torch.zeros(1, device="cuda")
            for param_group in inner.param_groups:
                for p in param_group["params"]:
                    if p.grad is not None:
                        sq += p.grad.float().pow(2).sum()
            dist.all_reduce(sq, op=dist.ReduceOp.SUM, group=group)
            total += sq.item()
        return total ** 0.5

    def step(self):
        norm = self.get_grad_norm()
        coeff = min(1.0, self.clip_grad / (norm + 1e-6))
        for inner, _ in self.chained:
            for param_group in inner.param_groups:
                for p in param_group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(coeff)
            inner.step()
            inner.zero_grad()
        return norm
