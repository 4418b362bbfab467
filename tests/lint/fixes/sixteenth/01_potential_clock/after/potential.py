import time

import lightning as L
import torch
from torch import nn


class Potential(L.LightningModule):
    def __init__(self, width=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )
        self.began = 0.0
        self.errors = []

    def forward(self, coords):
        return self.body(coords).sum(dim=1).squeeze(-1)

    def training_step(self, batch, _):
        coords, energy = batch
        loss = nn.functional.mse_loss(self(coords), energy)
        self.log("train/loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        coords, energy = batch
        self.errors.append((self(coords) - energy).abs())

    def on_validation_epoch_end(self):
        mae = torch.cat(self.errors).mean()
        self.errors.clear()
        self.log("val/mae", mae, prog_bar=True, sync_dist=True)

    def on_train_epoch_start(self):
        self.began = time.monotonic()

    def on_train_epoch_end(self):
        self._note_duration()
        self._note_gradients()

    def _note_duration(self):
        took = time.monotonic() - self.began
        self.log("time/epoch", took, on_epoch=True, prog_bar=True, rank_zero_only=True)

    def _note_gradients(self):
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        if norms:
            self.log("grad/mean", torch.stack(norms).mean(), sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        plan = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=5)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": plan, "monitor": "val/mae"}}
