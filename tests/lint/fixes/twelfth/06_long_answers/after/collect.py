import torch
import torch.distributed as dist


def stack_ranks(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


def widen(tensor, fill):
    size = torch.tensor([tensor.shape[1]], device=tensor.device)
    dist.all_reduce(size, op=dist.ReduceOp.MAX)
    extra = int(size.item()) - tensor.shape[1]
    return torch.nn.functional.pad(tensor, (0, extra), value=fill)
