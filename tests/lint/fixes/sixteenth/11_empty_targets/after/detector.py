import torch
from torch import nn

from losses import GridLoss


class Detector(nn.Module):
    def __init__(self, classes=20, width=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=4, padding=1), nn.SiLU(),
            nn.Conv2d(width, width, 3, stride=4, padding=1), nn.SiLU(),
        )
        self.score_head = nn.Conv2d(width, classes, 1)
        self.box_head = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, 4, 1))
        self.criterion = GridLoss()

    def forward(self, batch):
        feats = self.body(batch["image"])
        return self.criterion(self.score_head(feats), self.box_head(feats), batch)
