import torch
import torch.distributed as dist
import torch.nn as nn


@torch.no_grad()
def recompute_norm(model, batches):
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    model.train()
    for images in batches:
        model(images.cuda())
    for m in norms:
        dist.all_reduce(m.running_mean, op=dist.ReduceOp.AVG)
        dist.all_reduce(m.running_var, op=dist.ReduceOp.AVG)
        m.momentum = 0.1
