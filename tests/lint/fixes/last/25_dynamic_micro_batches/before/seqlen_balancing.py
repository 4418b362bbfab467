import torch
import torch.distributed as dist


def ceildiv(a, b):
    return -(a // -b)


def get_balanced_partitions(seqlens, k):
    order = sorted(range(len(seqlens)), key=lambda i: -seqlens[i])
    parts, sums = [[] for _ in range(k)], [0] * k
    for i in order:
        j = sums.index(min(sums))
        parts[j].append(i)
        sums[j] += seqlens[i]
    return [sorted(p) for p in parts if p]


def rearrange_micro_batches(batch, max_token_len, dp_group=None):
    seqlens = batch["attention_mask"].sum(dim=1)
    total_seqlen = seqlens.sum().item()
    num_micro_batches = min(len(seqlens), ceildiv(total_seqlen, max_token_len))
    if dist.is_initialized() and dp_group is not None:
        count = torch.tensor([num_micro_batches], device="cuda")
        dist.all_reduce(count, op=dist.ReduceOp.MAX, group=dp_group)
        num_micro_batches = count.item()
    partitions = get_balanced_partitions(seqlens.tolist(), num_micro_batches)
    return [{k: v[idx] for k, v in batch.items()} for idx in partitions], partitions


def prepare_dynamic_batch(batch, max_token_len, dp_group=None):
    return rearrange_micro_batches(batch, max_token_len, dp_group=dp_group)
