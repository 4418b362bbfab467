import torch
import torch.distributed as dist


def chunk_loss(new, old, edge, mask):
    ratio = (new - old).exp()
    clipped = ratio.clamp(max=1.3).detach()
    count = mask.sum()
    dist.all_reduce(count)
    share = count.clamp(min=1) / dist.get_world_size()
    return -(clipped * edge[:, None] * new * mask).sum() / share


def token_objective(new, old, edge, mask, chunk):
    total = new.new_zeros(())
    for at in range(0, new.size(1), chunk):
        cut = slice(at, at + chunk)
        total = total + chunk_loss(new[:, cut], old[:, cut], edge, mask[:, cut])
    return total
