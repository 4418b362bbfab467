"""Exchange between a split of the sequence and a split of the heads."""
import torch
import torch.distributed as dist


class SeqToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, scatter, gather):
        ctx.args = (group, scatter, gather)
        world = dist.get_world_size(group)
        pieces = [p.contiguous() for p in torch.tensor_split(x, world, scatter)]
        out = [torch.empty_like(pieces[0]) for _ in range(world)]
        dist.all_to_all(out, pieces, group=group)
        return torch.cat(out, dim=gather).contiguous()

    @staticmethod
    def backward(ctx, grad):
        group, scatter, gather = ctx.args
        return SeqToHeads.apply(grad, group, gather, scatter), None, None, None


def take_part(x, group):
    world = dist.get_world_size(group)
    pad = -x.size(1) % world
    if pad:
        x = torch.nn.functional.pad(x, (0, 0) * (x.dim() - 2) + (0, pad))
    return x.chunk(world, dim=1)[dist.get_rank(group)]
