import math

import torch
import torch.distributed as dist


def balanced(lengths, parts):
    parts = min(parts, len(lengths))
    load = [0] * parts
    crates = [[] for _ in range(parts)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        at = min(range(parts), key=lambda p: (bool(crates[p]), load[p]))
        crates[at].append(i)
        load[at] += lengths[i]
    return crates


def pack(batch, limit, device):
    """Splits a batch in crates of about `limit` tokens, as many on every rank."""
    lengths = batch["mask"].sum(-1).tolist()
    wanted = max(1, math.ceil(sum(lengths) / limit))
    count = torch.tensor([wanted], device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    crates = balanced(lengths, int(count.item()))
    filled = [{k: v[c].to(device) for k, v in batch.items()} for c in crates]
    blank = {k: v[:1].to(device) for k, v in batch.items()}
    blank["mask"] = torch.zeros_like(blank["mask"])
    return filled + [blank] * (int(count.item()) - len(filled))
