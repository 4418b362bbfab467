import torch
import torch.distributed as dist


def clip_by_global_norm(params, limit, group):
    norms = [p.grad.float().norm() for p in params if p.grad is not None]
    total = torch.stack(norms).square().sum() if norms else torch.zeros((), device="cuda")
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        if p.grad is not None:
            p.grad.mul_(scale)
    return norm.item()


class HalfOptimizer:
    def __init__(self, inner, grid, clip=1.0, scale=2.0 ** 16):
        self.inner = inner
        self.grid = grid
        self.clip = clip
        self.scale = scale
        self.params = [p for g in inner.param_groups for p in g["params"]]

    def backward(self, tensor, grad=None):
        tensor.backward(grad) if grad is not None else (tensor * self.scale).backward()

    def _overflow(self):
        bad = torch.zeros(1, device="cuda")
        for p in self.params:
            if p.grad is not None and not torch.isfinite(p.grad).all():
                bad.fill_(1.0)
                break
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.grid.replica_group)
        return bool(bad.item())

    def _adjust(self, overflow):
        self.scale = max(self.scale / 2, 1.0) if overflow else min(self.scale * 1.001, 2.0 ** 20)

    def step(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.div_(self.scale * self.grid.replicas)
                dist.all_reduce(p.grad, group=self.grid.replica_group)
        overflow = self._overflow()
        self._adjust(overflow)
        norm = clip_by_global_norm(self.params, self.clip, self.grid.stage_group)
        if overflow:
            self.inner.zero_grad()
            return False, None
        self.inner.step()
        self.inner.zero_grad()
        return True, norm
