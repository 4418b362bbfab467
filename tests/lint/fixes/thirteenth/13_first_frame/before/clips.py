import random

import torch


class ClipStream:
    """Frames of clips of random length, one after the other."""

    def __init__(self, seed, device, size=32):
        self.rng = random.Random(seed)
        self.device = device
        self.size = size
        self.left = 0

    def next_frame(self):
        fresh = self.left == 0
        if fresh:
            self.left = self.rng.randrange(5, 20)
        self.left -= 1
        image = torch.randn(2, 3, self.size, self.size, device=self.device)
        depth = torch.randint(0, 8, (2, self.size, self.size), device=self.device)
        return image, depth, fresh
