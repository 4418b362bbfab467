import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics.image import PeakSignalNoiseRatio
from torchmetrics.image.fid import FrechetInceptionDistance


class Painter(nn.Module):
    def __init__(self, channels=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(channels, 3, 3, padding=1),
        )

    def forward(self, x):
        return torch.sigmoid(self.net(x))


class AvatarModule(pl.LightningModule):
    def __init__(self, lr=2e-4):
        super().__init__()
        self.lr = lr
        self.painter = Painter()
        self.psnr = PeakSignalNoiseRatio(data_range=1.0)
        self.fid = FrechetInceptionDistance(feature=64, normalize=True)
        self.last_batch = None

    def training_step(self, batch, batch_idx):
        masked, full = batch
        loss = F.l1_loss(self.painter(masked), full)
        self.log("train/l1", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        masked, full = batch
        fake = self.painter(masked)
        self.psnr.update(fake, full)
        self.fid.update(full, real=True)
        self.fid.update(fake, real=False)
        self.log("val/psnr", self.psnr, on_epoch=True)
        self.last_batch = batch

    @rank_zero_only
    def on_validation_end(self):
        fid = self.fid.compute()
        self.fid.reset()
        masked, full = self.last_batch
        with torch.no_grad():
            fake = self.painter(masked[:4])
        board = self.logger.experiment
        board.add_scalar("val/fid", fid.item(), self.global_step)
        board.add_images("val/fake", fake, self.global_step)
        board.add_images("val/real", full[:4], self.global_step)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
