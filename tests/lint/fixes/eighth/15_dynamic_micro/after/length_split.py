import torch
import torch.distributed as dist


def balanced(lengths, parts):
    bins = [[] for _ in range(parts)]
    loads = [0] * parts
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        slot = min(range(parts), key=lambda p: (loads[p], len(bins[p])))
        bins[slot].append(index)
        loads[slot] += lengths[index]
    return [sorted(b) for b in bins if b]


def dynamic_split(batch, token_limit, dp_group=None, same_count=True):
    lengths = batch["mask"].sum(dim=1).tolist()
    count = max(1, -(-int(sum(lengths)) // token_limit))
    if dist.is_initialized() and same_count and dp_group is not None:
        agreed = torch.tensor([count], device=batch["mask"].device)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=dp_group)
        count = int(agreed.item())
    count = min(count, len(lengths))
    order = balanced(lengths, count)
    return [{k: v[rows] for k, v in batch.items()} for rows in order], order
