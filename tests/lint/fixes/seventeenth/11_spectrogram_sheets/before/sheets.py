import os

import lightning.pytorch as pl
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from lightning.pytorch.utilities import rank_zero_only


class SpectrogramSheets(pl.Callback):
    """Draws the first validation examples of every epoch."""

    def __init__(self, count=4, every_n_epochs=1):
        self.count = count
        self.every_n_epochs = every_n_epochs
        self.kept = []

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        if batch_idx == 0:
            self.kept = [(a.float().cpu(), b.float().cpu()) for a, b in zip(outputs["target"], outputs["estimate"])][: self.count]

    @rank_zero_only
    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking or trainer.current_epoch % self.every_n_epochs:
            return
        folder = os.path.join(trainer.log_dir, "sheets")
        self._draw(folder, trainer.current_epoch)

    def _draw(self, folder, epoch):
        os.makedirs(folder, exist_ok=True)
        fig, axes = plt.subplots(len(self.kept), 2, squeeze=False, figsize=(8, 3 * len(self.kept)))
        for row, (target, estimate) in zip(axes, self.kept):
            row[0].imshow(torch.log1p(target).numpy(), origin="lower", aspect="auto")
            row[1].imshow(torch.log1p(estimate).numpy(), origin="lower", aspect="auto")
        fig.savefig(os.path.join(folder, f"epoch{epoch:04d}.png"))
        plt.close(fig)
