import torch
import torch.distributed as dist


class GradScale:
    def __init__(self, start=2.0 ** 16, growth=2.0, backoff=0.5, interval=1000, floor=1.0):
        self.value = start
        self.growth, self.backoff = growth, backoff
        self.interval, self.floor = interval, floor
        self.good_steps = 0

    def update(self, overflow):
        if overflow:
            self.value = max(self.floor, self.value * self.backoff)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps % self.interval == 0:
            self.value *= self.growth


class HalfOptimizer:
    """Keeps float32 copies of half precision weights and updates those."""

    def __init__(self, optimizer, groups, scale=None, max_norm=0.0):
        self.optimizer = optimizer
        self.groups = groups
        self.scale = scale or GradScale()
        self.max_norm = max_norm
        self.pairs = []
        for param_group in optimizer.param_groups:
            masters = []
            for p in param_group["params"]:
                master = p.detach().clone().float()
                self.pairs.append((p, master))
                masters.append(master)
            param_group["params"] = masters

    def zero_grad(self):
        for p, master in self.pairs:
            p.grad = None
            master.grad = None

    def scale_loss(self, loss):
        return loss.float() * self.scale.value

    def _move_grads(self):
        for p, master in self.pairs:
            if p.grad is not None:
                master.grad = p.grad.float()

    def _unscale_and_check(self):
        bad = torch.zeros(1, device="cuda")
        for _, master in self.pairs:
            if master.grad is not None:
                master.grad.div_(self.scale.value)
                if not torch.isfinite(master.grad).all():
                    bad.fill_(1.0)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=self.groups.tensor)
        return bool(bad.item())

    def _clip(self):
        total = torch.zeros(1, device="cuda")
        for p, master in self.pairs:
            if master.grad is not None and self.groups.owns(p):
                total += master.grad.norm() ** 2
        dist.all_reduce(total, group=self.groups.model)
        norm = total.sqrt().item()
        if norm > self.max_norm:
            for _, master in self.pairs:
                if master.grad is not None:
                    master.grad.mul_(self.max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def step(self):
        self._move_grads()
        overflow = self._unscale_and_check()
        self.scale.update(overflow)
        norm = self._clip() if self.max_norm > 0 else None
        if overflow:
            self.zero_grad()
            return False, None
        self.optimizer.step()
        for p, master in self.pairs:
            p.copy_(master)
        return True, norm
