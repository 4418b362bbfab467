import torch
import torch.distributed as dist


def _marked(model):
    return [p for p in model.parameters() if getattr(p, "shared_by_experts", False)]


def _flat_sum(grads, group):
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat, group=group)
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def sum_shared_grads(model, group):
    """Sums the gradients of the parameters that all members of the group hold in common."""
    params = _marked(model)
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    kinds = {p.grad.dtype for p in params}
    for kind in kinds:
        _flat_sum([p.grad for p in params if p.grad.dtype == kind], group)
