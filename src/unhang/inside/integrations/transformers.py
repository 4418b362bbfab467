"""`Trainer(callbacks=[TransformersCallback()])` for the Trainer of Hugging Face."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from unhang.inside.integrations import Training


class TransformersCallback(import_module("transformers").TrainerCallback):  # type: ignore[misc]
    """The guards in a training of `transformers.Trainer`: recorder, step marks, failures known to all ranks, and the checks.

    `TrainingArguments` makes the process group, so make the callback before it. The Trainer reports no exception to its
    callbacks: one that nobody catches becomes known to the other ranks when it leaves the program; where the script catches it,
    call `callback.training.failed(error)`.

    Example:
        ```python
        from unhang.integrations import TransformersCallback

        callback = TransformersCallback(report_dir="unhang-reports/trainer")
        # arguments = TrainingArguments(...); Trainer(model, arguments, callbacks=[callback], ...).train()
        assert callback.training.steps == 0
        ```

    Args:
        settings: those of `unhang.integrations.Training`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.training = Training(**settings)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **more: Any
    ) -> None:
        """All ranks are there, model and optimizer too."""
        self.training.begin(model, getattr(optimizer, "optimizer", optimizer))

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """An optimizer step has ended, after all its accumulated batches."""
        self.training.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The training is over."""
        self.training.end()
