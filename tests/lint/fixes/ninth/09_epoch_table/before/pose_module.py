import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn


class PoseModule(pl.LightningModule):
    def __init__(self, joints=13, width=32, lr=1e-4):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, joints, 1),
        )

    def _loss(self, batch):
        image, heat = batch
        return F.mse_loss(self.net(image), heat)

    def training_step(self, batch, _):
        loss = self._loss(batch)
        self.log("train/loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val/loss", self._loss(batch), on_step=False, on_epoch=True, sync_dist=True)

    def on_train_epoch_start(self):
        self.log("lr", self.lr, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)
