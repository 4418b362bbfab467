import torch


class NoValidAnchors(ValueError):
    pass


def sample_anchor_positions(loss_mask, block_size, count):
    valid = loss_mask[:, : loss_mask.shape[1] - block_size].nonzero()
    if valid.shape[0] == 0:
        raise NoValidAnchors("no position can begin a block")
    picked = torch.randperm(valid.shape[0])[:count]
    return valid[picked]
