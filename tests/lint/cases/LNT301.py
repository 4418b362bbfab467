"""Nobody tells the sampler the epoch."""

from torch.utils.data import DistributedSampler


def make(items):
    DistributedSampler(items, shuffle=False)
    return DistributedSampler(items)  # LNT301
