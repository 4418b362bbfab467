import torch


def masked_mean(tensor, mask, dim=None):
    if dim is not None:
        count = mask.sum(dim)
        return torch.where(count > 0, (tensor * mask).sum(dim) / (count + 1e-8), torch.zeros_like(count))
    return (tensor * mask).sum() / (mask.sum() + 1e-8)


def agg_loss(loss_mat, loss_mask, mode):
    if mode == "token-mean":
        return masked_mean(loss_mat, loss_mask)
    if mode == "seq-mean-token-mean":
        per_sequence = masked_mean(loss_mat, loss_mask, dim=-1)
        return per_sequence.mean()
    raise ValueError(f"Invalid loss_agg_mode: {mode}")
