import torch
import torch.distributed as dist


def sizes_of(x, axis):
    mine = torch.tensor(x.shape[axis], device=x.device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return torch.stack(everyone)


def gather_ragged(x, sizes, axis):
    parts = []
    for src, size in enumerate(sizes):
        shape = list(x.shape)
        shape[axis] = size
        part = x.contiguous() if src == dist.get_rank() else x.new_empty(shape)
        dist.broadcast(part, src)
        parts.append(part)
    dist.barrier()
    return torch.cat(parts, dim=axis)
