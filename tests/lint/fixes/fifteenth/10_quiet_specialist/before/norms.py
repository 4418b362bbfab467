import torch
import torch.distributed as dist


@torch.no_grad()
def clip_over_ranks(parameters, limit, norm_type=2.0, group=None):
    parameters = list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0, device=parameters[0].device)
    power = torch.zeros((), device=grads[0].device)
    for grad in grads:
        power += torch.linalg.vector_norm(grad.float(), norm_type).pow(norm_type)
    dist.all_reduce(power, op=dist.ReduceOp.SUM, group=group)
    total = power.pow(1.0 / norm_type)
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.dtype))
    return total
