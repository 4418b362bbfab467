import torch
from torch import nn


class KiteTower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=4), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, width),
        )

    def forward(self, image):
        return nn.functional.normalize(self.net(image), dim=-1)


class Kite(nn.Module):
    def __init__(self, vocab=2000, width=128):
        super().__init__()
        self.visual = KiteTower(width)
        self.words = nn.EmbeddingBag(vocab, width)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, image=None, text=None):
        seen = self.visual(image) if image is not None else None
        told = nn.functional.normalize(self.words(text), dim=-1) if text is not None else None
        return seen, told, self.scale.exp()
