"""`TorchTrainer(guarded(train_loop), ...)` for the workers of Ray Train."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unhang.integrations.training import Training


def guarded(
    train_loop: Callable[..., Any], report_dir: str | os.PathLike[str] | None = None, **settings: Any
) -> Callable[..., Any]:
    """The training loop for `ray.train.torch.TorchTrainer`, recorded, and with failures told to all workers.

    Ray makes the process group before the loop begins; the recorder catches up with it. Inside the loop
    `unhang.integrations.ray_train.current()` is the `Training`: call its `step()` after each step, and `begin(model,
    optimizer)` for the checks.

    Example:
        ```python
        from unhang.integrations.ray_train import current, guarded

        def train_loop() -> None:
            for _ in range(3):
                current().step()

        loop = guarded(train_loop, report_dir="unhang-reports/ray")
        # TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2)).fit()
        loop()
        ```

    Args:
        train_loop: with or without a configuration, as Ray takes it.
        report_dir: of all workers, on a disk that all nodes see; by default a new folder below `unhang-reports`, where the
            driver runs.
        settings: the others of `Training`.
    """
    # Here, in the driver: the workers have folders of their own.
    name = time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}"
    folder = str(Path(report_dir or os.environ.get("UNHANG_REPORT_DIR") or Path("unhang-reports") / name).absolute())

    def loop(*config: Any) -> Any:
        from unhang.integrations import ray_train

        with Training(folder, **settings) as training:
            ray_train._trainings[:] = [training]
            training.begin()
            return train_loop(*config)

    # Ray counts the parameters of the function to know whether it wants the configuration.
    loop = functools.wraps(train_loop)(loop)
    loop.__signature__ = inspect.signature(train_loop)  # type: ignore[attr-defined]
    return loop


_trainings: list[Training] = []


def current() -> Training:
    """The guards of the training loop that this worker is in.

    Raises:
        RuntimeError: the loop was not wrapped by `guarded`.
    """
    if not _trainings:
        raise RuntimeError("wrap the training loop: TorchTrainer(guarded(train_loop), ...)")
    return _trainings[-1]
