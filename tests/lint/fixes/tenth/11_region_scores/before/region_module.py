from collections import defaultdict

import pytorch_lightning as pl
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from overlap import class_counts


class RegionModule(pl.LightningModule):
    def __init__(self, names, classes=21):
        super().__init__()
        self.names = names
        self.classes = classes
        self.net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, classes, 1))
        self.kept = defaultdict(list)

    def training_step(self, batch, batch_idx):
        images, truth = batch
        return F.cross_entropy(self.net(images), truth)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        images, truth = batch
        guess = self.net(images).argmax(1)
        counts = class_counts(guess.flatten(), truth.flatten(), self.classes)
        self.kept[dataloader_idx].append(counts)

    def reduced(self, outputs):
        counts = torch.zeros(3, self.classes, device=self.device)
        for part in outputs:
            counts += part
        if dist.is_initialized():
            dist.all_reduce(counts)
        return counts

    def on_validation_epoch_end(self):
        kept = dict(self.kept)
        self.kept.clear()
        if not kept:
            print("validation gave no outputs")
            return
        overall = torch.zeros(3, self.classes, device=self.device)
        for index in sorted(kept):
            counts = self.reduced(kept[index])
            overall += counts
            self.report(self.names[index], counts)
        self.report("all", overall)

    def report(self, name, counts):
        score = (counts[0] / counts[1].clamp(min=1)).mean()
        self.log(f"val_iou_{name}", score, rank_zero_only=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)
