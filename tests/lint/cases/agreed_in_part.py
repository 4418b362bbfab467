"""Whether gradients overflow, agreed on in one part of the grid of ranks, decides on a collective of more of them."""

import torch
import torch.distributed as dist


def overflows(params, groups):
    bad = torch.zeros(1)
    for p in params:
        if p.grad is not None and not torch.isfinite(p.grad).all():
            bad.fill_(1.0)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=groups.tensor)
    return bool(bad.item())


def overflows_anywhere(params, groups):
    bad = torch.zeros(1)
    for p in params:
        if p.grad is not None and not torch.isfinite(p.grad).all():
            bad.fill_(1.0)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=groups.tensor)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=groups.pipeline)
    return bool(bad.item())


def overflows_in_the_model(params, model_group):
    bad = torch.tensor(float(any(not p.grad.isfinite().all() for p in params)))
    dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=model_group)
    return bad.item() > 0


def norm_of(params, group):
    total = sum(p.grad.norm() ** 2 for p in params)
    dist.all_reduce(total, group=group)
    return total.sqrt()


def step(optimizer, params, groups):
    if overflows(params, groups):
        return None  # LNT108
    total = torch.zeros(1)
    for p in params:
        total += p.grad.norm() ** 2
    dist.all_reduce(total, group=groups.model)
    optimizer.step()
    return total


class Optimizer:
    def __init__(self, params, tp_group, pp_group):
        self.params, self.tp_group, self.pp_group = params, tp_group, pp_group

    def is_bad(self):
        flag = torch.tensor([float(any(torch.isnan(p.grad).any() for p in self.params))])
        dist.all_reduce(flag, group=self.tp_group)
        return flag.item() > 0

    def step(self):
        if not self.is_bad():
            total = torch.ones(1)
            dist.all_reduce(total, group=self.pp_group)  # LNT107


# Healthy.


def step_with_all(optimizer, params, groups):
    if overflows_anywhere(params, groups):
        return None
    total = torch.zeros(1)
    dist.all_reduce(total, group=groups.model)
    optimizer.step()
    return total


def step_in_its_part(optimizer, params, groups):
    if overflows(params, groups):
        return None
    total = torch.zeros(1)
    dist.all_reduce(total, group=groups.tensor)
    dist.all_reduce(total, group=groups.data)
    optimizer.step()
    return total


def step_in_the_model(optimizer, params, groups):
    if overflows_in_the_model(params, groups.model):
        return None
    total = torch.zeros(1)
    dist.all_reduce(total, group=groups.tensor)
    dist.all_reduce(total)
    optimizer.step()
    return total


def batch_of_its_part(batch, groups):
    count = torch.tensor(len(batch))
    dist.all_reduce(count, group=groups.tensor)
    if count.item() > 4:
        dist.all_reduce(count, group=groups.model)
    return count
