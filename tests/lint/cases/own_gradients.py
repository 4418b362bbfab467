"""Lists of the parameters that have a gradient on this rank, and what is asked of them."""

import torch
import torch.distributed as dist


def is_expert(p):
    return getattr(p, "expert", False)


def total_norm(params):
    params = [p for p in params if p.grad is not None]
    experts = [p for p in params if is_expert(p)]
    total = torch.zeros(())
    if experts:
        dist.all_reduce(total)  # LNT107
    return total


def reduced(params):
    grads = [p.grad for p in params if p.grad is not None]
    if grads:
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)  # LNT107


def left(params):
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        return  # LNT108
    dist.all_reduce(torch.stack([g.norm() for g in grads]).sum())


# Right: of all parameters, of settings, or the list is filled before.


def norm_of_all(params):
    experts = [p for p in params if is_expert(p)]
    total = torch.zeros(())
    if experts:
        grads = [p.grad for p in experts if p.grad is not None]
        total = sum(g.norm() for g in grads)
        dist.all_reduce(total)
    return total


def of_settings(tools, x):
    used = [t for t in tools if t.schema is not None]
    if used:
        dist.all_reduce(x)
    return x


def filled_before(params):
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    grads = [p.grad for p in params]
    if grads:
        dist.all_reduce(grads[0])


def norm_of_wrapped(net, x):
    model = torch.nn.parallel.DistributedDataParallel(net)
    model(x).sum().backward()
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    if norms:
        dist.all_reduce(torch.stack(norms).mean())
    named = []
    for name, p in model.named_parameters():
        if p.grad is not None:
            named.append((name, p))
    if named:
        dist.barrier()


def norm_of_bare(net, x):
    net(x).sum().backward()
    norms = [p.grad.norm() for p in net.parameters() if p.grad is not None]
    if norms:
        dist.all_reduce(torch.stack(norms).mean())  # LNT107
