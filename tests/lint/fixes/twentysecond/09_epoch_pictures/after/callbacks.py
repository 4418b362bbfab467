from pathlib import Path

import lightning as L
import matplotlib
import torch
from lightning.pytorch.loggers import WandbLogger

matplotlib.use("Agg")
import matplotlib.pyplot as plt


class PoseFigure:
    def __init__(self, dataset, count=2):
        self.dataset = dataset
        self.count = count

    @torch.no_grad()
    def draw(self, module):
        fig, axes = plt.subplots(1, self.count, figsize=(4 * self.count, 4))
        for i, ax in enumerate(axes):
            sample = self.dataset[i]
            heat = module.net(sample["image"].unsqueeze(0).to(module.device))[0]
            ax.imshow(sample["image"][0], cmap="gray")
            ax.imshow(heat.sum(0).cpu(), alpha=0.5)
            ax.set_axis_off()
        return fig


class FigureFolder(L.Callback):
    """Saves a figure of a few predictions after every epoch."""

    def __init__(self, folder, figure: PoseFigure):
        self.folder = Path(folder)
        self.figure = figure

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            fig = self.figure.draw(pl_module)
            fig.savefig(self.folder / f"epoch_{trainer.current_epoch:04d}.png")
            plt.close(fig)
        trainer.strategy.barrier()


class FigureBoard(L.Callback):
    """Sends the figure to the experiment board."""

    def __init__(self, figure: PoseFigure, every=1):
        self.figure = figure
        self.every = every

    def _board(self, trainer):
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                return logger
        return None

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch % self.every:
            return
        if trainer.is_global_zero:
            board = self._board(trainer)
            if board is not None:
                fig = self.figure.draw(pl_module)
                board.log_image("predictions", [fig], step=trainer.global_step)
                plt.close(fig)
        trainer.strategy.barrier()
