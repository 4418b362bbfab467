import json
from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.nn as nn
import torch.nn.functional as F


class DefectClassifier(pl.LightningModule):
    def __init__(self, width=128, lr=1e-3, report_dir="reports"):
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.body(x).squeeze(-1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.binary_cross_entropy_with_logits(self(x), y)

    def test_step(self, batch, batch_idx):
        x, y = batch
        return {"score": torch.sigmoid(self(x)), "target": y}

    def test_epoch_end(self, outputs):
        score = torch.cat([o["score"] for o in outputs])
        target = torch.cat([o["target"] for o in outputs])
        score = self.all_gather(score).flatten()
        target = self.all_gather(target).flatten()
        if self.trainer.is_global_zero:
            hits = ((score > 0.5) == (target > 0.5)).float().mean()
            out = Path(self.hparams.report_dir)
            out.mkdir(parents=True, exist_ok=True)
            (out / "test.json").write_text(
                json.dumps({"accuracy": hits.item(), "count": score.numel()})
            )
