import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def to_local(t):
    return t.to_local() if isinstance(t, DTensor) else t


def get_grad_norm(grads, data_parallel_group=None, model_parallel_group=None, norm_type=2.0):
    grads = [to_local(g).detach() for g in grads]
    norm_type = float(norm_type)
    if not grads:
        return 0.0
    device = torch.device("cuda", torch.cuda.current_device())
    if norm_type == torch.inf:
        total = torch.stack([g.abs().max() for g in grads]).max().to(device)
        op = dist.ReduceOp.MAX
    else:
        total = sum(g.float().norm(norm_type) ** norm_type for g in grads).to(device)
        op = dist.ReduceOp.SUM
    if data_parallel_group is not None:
        dist.all_reduce(total, op=op, group=data_parallel_group)
    if model_parallel_group is not None:
        dist.all_reduce(total, op=op, group=model_parallel_group)
    total = total.item()
    return total if norm_type == torch.inf else total ** (1.0 / norm_type)


def clip_grads(parameters, max_norm, norm):
    scale = max_norm / (norm + 1e-6)
    if scale < 1.0:
        for p in parameters:
            if p.grad is not None:
                p.grad.mul_(scale)
