"""`with watch(Accelerator()) as training:` the guards around a loop of Accelerate."""

from __future__ import annotations

import functools
from typing import Any

from unhang.integrations.training import Training


def watch(accelerator: Any, **settings: Any) -> Training:
    """Has `accelerator.prepare` begin the guards, and `accelerator.end_training` end them; steps are counted by themselves.

    The Accelerator makes the process group: call `unhang.install()` before it, so that nothing is missed. Use the result in a
    `with` statement around the loop, so that an exception in it is told to the other ranks also where somebody catches it.

    Example:
        ```python
        from accelerate import Accelerator
        from unhang.integrations.accelerate import watch

        accelerator = Accelerator(cpu=True)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(accelerator, report_dir="unhang-reports/accelerate") as training:
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
