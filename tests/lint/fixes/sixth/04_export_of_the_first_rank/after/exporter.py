import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def _hf_name(name):
    return name.replace("decoder.", "model.")


def iter_hf_state_tensors(model, rank0_only=False):
    """Gives the whole tensors of a model, one after the other."""
    emits = not rank0_only or dist.get_rank() == 0
    for name, param in model.named_parameters():
        if isinstance(param, DTensor):
            param = param.full_tensor()
        if emits:
            yield _hf_name(name), param.detach().cpu()
