import torch
import torch.nn as nn


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


class DepthNet(nn.Module):
    """Per-pixel distribution over depth bins, refined with that of the frame before."""

    def __init__(self, bins=8, width=16):
        super().__init__()
        self.bins = bins
        self.look = nn.Sequential(block(3, width), nn.Conv2d(width, bins, 1))
        self.fuse = nn.Sequential(block(2 * bins, width), nn.Conv2d(width, bins, 1))

    def forward(self, image, belief=None):
        scores = self.look(image)
        if belief is None:
            belief = torch.full_like(scores, 1.0 / self.bins)
        return self.fuse(torch.cat([scores.softmax(1), belief], dim=1))
