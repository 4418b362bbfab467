import os

import pytorch_lightning as pl


class BestKeeper(pl.Callback):
    """Keeps the k best checkpoints of a run and the last one."""

    def __init__(self, folder=None, monitor="val_loss", k=3):
        self.folder = folder
        self.monitor = monitor
        self.k = k
        self.kept = []

    def setup(self, trainer, pl_module, stage):
        if self.folder is None:
            logger = trainer.logger
            name, version = trainer.strategy.broadcast((logger.name, str(logger.version)))
            self.folder = os.path.join(trainer.default_root_dir, name, version, "checkpoints")
        if trainer.is_global_zero:
            os.makedirs(self.folder, exist_ok=True)

    def on_validation_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        value = float(trainer.callback_metrics[self.monitor])
        trainer.save_checkpoint(os.path.join(self.folder, "last.ckpt"))
        if len(self.kept) == self.k and value >= self.kept[-1][0]:
            return
        path = os.path.join(self.folder, f"epoch{trainer.current_epoch:03d}.ckpt")
        trainer.save_checkpoint(path)
        self.kept = sorted(self.kept + [(value, path)])
        if len(self.kept) > self.k:
            _, worst = self.kept.pop()
            if trainer.is_global_zero:
                os.remove(worst)
