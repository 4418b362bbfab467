import math

import torch
import torch.distributed as dist


def balanced(lengths, parts):
    if parts > len(lengths):
        raise ValueError(f"{len(lengths)} samples do not fill {parts} crates")
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
    return [{k: v[c].to(device) for k, v in batch.items()} for c in crates]
