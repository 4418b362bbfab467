"""Frameworks whose loop is the script's own: Accelerate, DeepSpeed and Ray Train."""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from unhang.inside.integrations.training import Training
from unhang.inside.recorder import facts


def watch_accelerator(accelerator: Any, **settings: Any) -> Training:
    """Has `accelerator.prepare` begin the guards, and `accelerator.end_training` end them; steps are counted by themselves.

    The Accelerator makes the process group: call `unhang.install()` before it, so that nothing is missed. Use the result in a
    `with` statement around the loop, so that an exception in it becomes known to the other ranks also where somebody catches it.

    Example:
        ```python
        from accelerate import Accelerator
        from unhang.integrations import watch_accelerator

        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch_accelerator(accelerator, report_dir="unhang-reports/accelerate") as training:
            model, optimizer = accelerator.prepare(model, optimizer)
            for _ in range(3):
                optimizer.zero_grad()
                accelerator.backward(model(torch.ones(4, 2)).sum())
                optimizer.step()
        assert training.steps == 3
        ```

    Args:
        accelerator: an `accelerate.Accelerator`.
        settings: those of `Training`.
    """
    training = Training(**settings)
    prepare, end = accelerator.prepare, accelerator.end_training

    @functools.wraps(prepare)
    def prepare_and_begin(*objects: Any, **more: Any) -> Any:
        prepared = prepare(*objects, **more)
        models, optimizers = list(accelerator._models), list(accelerator._optimizers)
        if models and optimizers:
            # Those of torch, which the wrapped ones step: a wrapped one also "steps" where it only accumulates.
            inner = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]
            training.begin(models[0], inner, getattr(accelerator, "scaler", None))
            training.count_steps_of(inner[0])
        return prepared

    @functools.wraps(end)
    def end_both() -> Any:
        training.end()
        return end()

    accelerator.prepare, accelerator.end_training = prepare_and_begin, end_both
    return training


def deepspeed_initialize(*arguments: Any, settings: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """`deepspeed.initialize` with the guards around its engine; returns what that returns.

    `engine.unhang` is the `Training`: use it in a `with` statement around the loop, so that an exception in it becomes known to
    the other ranks also where somebody catches it. Steps of the optimizer are counted, not those that only accumulate.

    Example:
        ```python
        from unhang.integrations import deepspeed_initialize

        model = torch.nn.Linear(2, 1)
        config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine, *_ = deepspeed_initialize(model=model, optimizer=optimizer, config=config)
        with engine.unhang as training:
            for _ in range(3):
                engine.backward(engine(torch.ones(4, 2)).sum())
                engine.step()
        assert training.steps == 3
        ```

    Args:
        arguments: those of `deepspeed.initialize`.
        settings: those of `Training`.
        more: those of `deepspeed.initialize` that have names.
    """
    training = Training(**(settings or {}))
    made = import_module("deepspeed").initialize(*arguments, **more)
    engine = made[0]
    step = engine.step

    @functools.wraps(step)
    def step_and_mark(*args: Any, **kwargs: Any) -> Any:
        before = engine.global_steps
        result = step(*args, **kwargs)
        if engine.global_steps != before:
            training.step()
        return result

    engine.step, engine.unhang = step_and_mark, training
    training.begin(engine.module, getattr(engine, "basic_optimizer", None))
    return made


def ray_train_loop(
    train_loop: Callable[..., Any], report_dir: str | os.PathLike[str] | None = None, **settings: Any
) -> Callable[..., Any]:
    """The training loop for `ray.train.torch.TorchTrainer`, recorded, and with failures known to all workers.

    Ray makes the process group before the loop begins; the recorder catches up with it. Inside the loop
    `unhang.integrations.ray_training()` is the `Training`: call its `step()` after each step, and `begin(model,
    optimizer)` for the checks.

    Example:
        ```python
        from unhang.integrations import ray_training, ray_train_loop

        def train_loop() -> None:
            for _ in range(3):
                ray_training().step()

        loop = ray_train_loop(train_loop, report_dir="unhang-reports/ray")
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
    given = facts.settings_now()
    folder = str(Path(report_dir or os.environ.get("UNHANG_REPORT_DIR") or Path("unhang-reports") / name).absolute())

    def loop(*config: Any) -> Any:
        from unhang.inside.integrations import frameworks

        with Training(folder, **settings) as training:
            frameworks._trainings[:] = [training]
            training.begin()
            facts.note_settings(given)
            return train_loop(*config)

    # Ray counts the parameters of the function to know whether it wants the configuration.
    loop = functools.wraps(train_loop)(loop)
    loop.__signature__ = inspect.signature(train_loop)  # type: ignore[attr-defined]
    return loop


_trainings: list[Training] = []


def ray_training() -> Training:
    """The guards of the training loop that this worker is in.

    Raises:
        RuntimeError: the loop was not wrapped by `ray_train_loop`.
    """
    if not _trainings:
        raise RuntimeError("wrap the training loop: TorchTrainer(ray_train_loop(train_loop), ...)")
    return _trainings[-1]
