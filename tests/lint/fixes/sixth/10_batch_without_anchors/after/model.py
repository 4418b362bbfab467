import torch


def sample_anchor_positions(loss_mask, block_size, count):
    valid = loss_mask[:, : loss_mask.shape[1] - block_size].nonzero()
    if valid.shape[0] == 0:
        return torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, dtype=torch.bool)
    picked = torch.randperm(valid.shape[0])[:count]
    return valid[picked], torch.ones(picked.shape[0], dtype=torch.bool)
