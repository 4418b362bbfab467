import torch
import torch.distributed as dist


def is_distributed():
    return dist.is_available() and dist.is_initialized()


def get_global_rank():
    return dist.get_rank() if is_distributed() else 0


def synchronize_value(value, device):
    if is_distributed():
        value_tensor = torch.tensor(value, device=device)
        dist.broadcast(value_tensor, 0)
        return value_tensor.item()
    return value


def synchronize_flag(flag, device):
    return bool(synchronize_value(flag, device))
