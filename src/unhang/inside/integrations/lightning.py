"""`Trainer(callbacks=[LightningCallback()])`, or UNHANG_LIGHTNING=1 without a change to the script."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from unhang.inside.integrations import Training

SWITCH = "UNHANG_LIGHTNING"
_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """The base class in the package that the script uses: the two are not the same."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in (*loaded, *_PACKAGES):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("no module named 'lightning'; pip install lightning")


class LightningCallback(_callback_class()):  # type: ignore[misc]
    """The guards in a Lightning training: recorder, step marks, failures known to all ranks, and the checks.

    An exception in one rank ends the others within seconds, where they would have waited for its collectives.

    Example:
        ```python
        import lightning.pytorch as pl
        from unhang.integrations import LightningCallback

        callback = LightningCallback(report_dir="unhang-reports/lightning", replicas_every=100)
        trainer = pl.Trainer(callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False)
        assert callback in trainer.callbacks
        ```

    Args:
        settings: those of `unhang.integrations.Training`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.training = Training(**settings)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """All ranks are there, model and optimizers too."""
        optimizers = list(trainer.optimizers)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.training.begin(trainer.model, optimizers or None, scaler)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """A step has ended."""
        self.training.step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Before Lightning takes its processes down."""
        self.training.failed(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The end of fit, validate or test."""
        self.training.end()


def callbacks() -> list[Any]:
    """The entry point: for each Trainer one callback where UNHANG_LIGHTNING is 1, and none where it is not."""
    return [LightningCallback()] if os.environ.get(SWITCH) == "1" else []
