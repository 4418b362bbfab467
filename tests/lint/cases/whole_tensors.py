"""A guard that asks for a sharded tensor is a part of gathering it."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def whole_weights(model):
    out = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, DTensor):
            tensor = tensor.full_tensor()
        out[name] = tensor.cpu()
    return out


def as_whole(tensor):
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()
    return tensor


class Average:
    def __init__(self, model):
        self.shadow = whole_weights(model)

    def update(self, model):
        if dist.get_rank() != 0:
            return  # LNT102
        for name, tensor in whole_weights(model).items():
            self.shadow[name].lerp_(tensor, 0.01)

    def saved(self, model, path):
        state = {k: as_whole(v) for k, v in model.state_dict().items()}
        if dist.get_rank() == 0:
            torch.save(state, path)

    def written(self, model, path):
        if dist.get_rank() == 0:
            torch.save({k: as_whole(v) for k, v in model.state_dict().items()}, path)  # LNT101
        dist.barrier()


def loader(args, data):
    return make(data) if args.is_main else None  # LNT101


def make(data):
    dist.barrier()
    return list(data)
