import logging
import os
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

log = logging.getLogger(__name__)


def _link_to_latest(trainer: L.Trainer, target: Path) -> bool:
    for cb in trainer.checkpoint_callbacks:
        if isinstance(cb, ModelCheckpoint) and cb.last_model_path:
            if target.exists() or target.is_symlink():
                target.unlink()
            os.symlink(cb.last_model_path, target)
            return True
    return False


def _save_or_link(trainer: L.Trainer, target: Path) -> None:
    if not _link_to_latest(trainer, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        trainer.save_checkpoint(target)
        log.info("saved checkpoint to %s", target.resolve())


def run_training(cfg, model, datamodule, trainer: L.Trainer):
    trainer.fit(model=model, datamodule=datamodule)
    checkpoint_path = Path(cfg.output_dir) / "model.ckpt"

    if trainer.is_global_zero:
        _save_or_link(trainer, checkpoint_path)
        if checkpoint_path.is_symlink():
            checkpoint_path.unlink()
            trainer.save_checkpoint(checkpoint_path)

    trainer.strategy.barrier("checkpoint-alias-finalize")
    if cfg.test:
        trainer.test(model=model, datamodule=datamodule)
