import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from megatron.core import mpu


def zigzag_slice(full, total_length, response_length):
    cp_size = mpu.get_context_parallel_world_size()
    cp_rank = mpu.get_context_parallel_rank()
    chunk = (response_length + 2 * cp_size - 1) // (2 * cp_size)
    first = full[cp_rank * chunk : (cp_rank + 1) * chunk]
    mirrored = 2 * cp_size - cp_rank - 1
    second = full[mirrored * chunk : (mirrored + 1) * chunk]
    return torch.cat([first, second])


def redistribute_responses(res, local_len, total_lengths, response_lengths):
    cp_group = mpu.get_context_parallel_group()
    chunk_start = mpu.get_context_parallel_rank() * local_len
    chunk_end = chunk_start + local_len
    for key, values in res.items():
        if all(v is None for v in values):
            continue
        ref_value = next(v for v in values if v is not None)
        pieces = []
        seq_start = 0
        for value, total_length, response_length in zip(values, total_lengths, response_lengths):
            first = seq_start + total_length - response_length - 1
            last = seq_start + total_length - 1
            s, e = max(first, chunk_start), min(last, chunk_end)
            if value is None or e <= s:
                piece = torch.zeros(
                    response_length,
                    dtype=ref_value.dtype,
                    device=ref_value.device,
                    requires_grad=ref_value.requires_grad,
                )
            else:
                piece = F.pad(value, (s - first, response_length - (e - first)))
            pieces.append(piece)
            seq_start += total_length
        joined = torch.cat(pieces, dim=0)
        joined = dist.nn.all_reduce(joined, group=cp_group)
        res[key] = [
            zigzag_slice(full, t, r)
            for full, t, r in zip(joined.split(response_lengths, dim=0), total_lengths, response_lengths)
        ]
    return res


def extract_per_sample(log_prob_full, entropy_full, total_lengths, response_lengths):
    local_len = log_prob_full.size(0)
    chunk_start = mpu.get_context_parallel_rank() * local_len
    chunk_end = chunk_start + local_len
    log_probs, entropies = [], []
    seq_start = 0
    for total_length, response_length in zip(total_lengths, response_lengths):
        s = max(seq_start + total_length - response_length - 1, chunk_start)
        e = min(seq_start + total_length - 1, chunk_end)
        if e <= s:
            log_probs.append(log_prob_full[:0])
            if entropy_full is not None:
                entropies.append(entropy_full[:0])
        else:
            log_probs.append(log_prob_full[s - chunk_start : e - chunk_start])
            if entropy_full is not None:
                entropies.append(entropy_full[s - chunk_start : e - chunk_start])
        seq_start += total_length
    return log_probs, entropies


def log_probs_and_entropy(args, logits, targets, total_lengths, response_lengths):
    log_prob_full = -F.cross_entropy(logits, targets, reduction="none")
    with torch.set_grad_enabled(args.entropy_coef != 0):
        probs = logits.softmax(dim=-1)
        entropy_full = -(probs * probs.clamp_min(1e-9).log()).sum(-1)
    log_probs, entropies = extract_per_sample(log_prob_full, entropy_full, total_lengths, response_lengths)
    res = {"log_probs": log_probs, "entropy": entropies}
    return redistribute_responses(res, logits.size(0), total_lengths, response_lengths)
