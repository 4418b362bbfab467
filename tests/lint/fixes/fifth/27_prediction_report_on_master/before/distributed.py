import torch
import torch.distributed as dist


def is_master():
    return not dist.is_initialized() or dist.get_rank() == 0


def gather_tensor(tensor):
    if not dist.is_initialized() or dist.get_world_size() < 2:
        return tensor[None]
    pieces = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, tensor.contiguous())
    return torch.stack(pieces)
