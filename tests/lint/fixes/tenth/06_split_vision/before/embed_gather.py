import torch
import torch.distributed as dist


class JoinRows(torch.autograd.Function):
    """Concatenate the row blocks of all ranks; rows per rank may differ."""

    @staticmethod
    def forward(ctx, rows, counts, group):
        ctx.counts = counts
        ctx.group = group
        ctx.me = dist.get_rank(group)
        tall = max(counts)
        mine = rows.new_zeros(tall, rows.shape[1])
        mine[: rows.shape[0]] = rows
        parts = [torch.empty_like(mine) for _ in counts]
        dist.all_gather(parts, mine, group=group)
        return torch.cat([p[:n] for p, n in zip(parts, counts)])

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        start = sum(ctx.counts[: ctx.me])
        return grad[start : start + ctx.counts[ctx.me]], None, None


def join_rows(rows, counts, group):
    return JoinRows.apply(rows, counts, group)
