import os

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def to_full(tensor):
    if isinstance(tensor, DTensor):
        return tensor.full_tensor().cpu()
    return tensor.detach().cpu()


def save_optimizer_state(model, optimizer, path):
    names = {param: name for name, param in model.named_parameters()}
    moments = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            state = optimizer.state.get(param)
            if not state:
                continue
            moments[names[param]] = {
                "exp_avg": to_full(state["exp_avg"]),
                "exp_avg_sq": to_full(state["exp_avg_sq"]),
            }
    if dist.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
        torch.save(moments, os.path.join(path, "optimizer.pt"))
