from pathlib import Path

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger


def find_board(trainer):
    for logger in trainer.loggers:
        if isinstance(logger, CSVLogger):
            return logger
    return None


class SketchFolder(Callback):
    def __init__(self, folder, sketcher):
        self.folder = Path(folder)
        self.sketcher = sketcher

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            sketch = self.sketcher(pl_module)
            torch.save(sketch, self.folder / f"sketch_{trainer.current_epoch:03d}.pt")
        trainer.strategy.barrier()


class SketchBoard(Callback):
    def __init__(self, sketcher, every=1):
        self.sketcher = sketcher
        self.every = every

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch % self.every:
            return
        if trainer.is_global_zero:
            board = find_board(trainer)
            if board is None:
                return
            sketch = self.sketcher(pl_module)
            board.log_metrics(
                {"sketch_mean": sketch.mean().item(), "sketch_max": sketch.max().item()},
                step=trainer.global_step,
            )
        trainer.strategy.barrier()
