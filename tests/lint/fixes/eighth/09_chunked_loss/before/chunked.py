import torch
import torch.nn.functional as F


def flatten_valid(hidden, labels, ignore=-100):
    keep = labels != ignore
    return hidden[keep], labels[keep]


def chunked_nll(hidden, labels, head, chunk=256, denominator=None):
    rows, targets = flatten_valid(hidden, labels)
    if targets.numel() == 0:
        return hidden.sum() * 0.0
    if denominator is None:
        denominator = targets.numel()
    span = (targets.numel() + chunk - 1) // chunk * chunk
    total = torch.zeros((), device=hidden.device)
    for start in range(0, span, chunk):
        part, wanted = rows[start:start + chunk], targets[start:start + chunk]
        logits = head(part)
        total = total + F.cross_entropy(logits.float(), wanted, reduction="sum")
    return total / denominator
