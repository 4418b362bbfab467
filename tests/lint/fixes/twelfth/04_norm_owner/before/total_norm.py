import torch
import torch.distributed as dist


def is_expert(p):
    return getattr(p, "expert", False)


def square_sum(params, device):
    total = torch.zeros((), device=device)
    for p in params:
        total += p.grad.detach().float().pow(2).sum()
    return total


def total_norm(params, device):
    """Norm over the shared parameters and over the experts of all ranks."""
    params = [p for p in params if p.grad is not None]
    experts = [p for p in params if is_expert(p)]
    total = square_sum([p for p in params if not is_expert(p)], device)
    if experts:
        part = square_sum(experts, device)
        dist.all_reduce(part)
        total += part
    return total.sqrt()


def clip(params, limit, device):
    params = list(params)
    norm = total_norm(params, device)
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        if p.grad is not None:
            p.grad.mul_(scale)
    return norm
