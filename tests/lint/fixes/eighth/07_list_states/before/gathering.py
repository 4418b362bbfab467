import torch
import torch.distributed as dist


def gather_any_shape(value, group=None):
    world = dist.get_world_size(group)
    value = value.contiguous()
    size = torch.tensor(value.shape, device=value.device)
    sizes = [torch.zeros_like(size) for _ in range(world)]
    dist.all_gather(sizes, size, group=group)
    limit = torch.stack(sizes).max(dim=0).values
    padded = value.new_zeros(tuple(limit.tolist()))
    padded[tuple(slice(0, n) for n in value.shape)] = value
    parts = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    return [p[tuple(slice(0, n) for n in s.tolist())] for p, s in zip(parts, sizes)]
