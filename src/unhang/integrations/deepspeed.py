"""`initialize(...)` in the place of `deepspeed.initialize(...)`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from unhang.integrations.training import Training


def initialize(*arguments: Any, settings: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """`deepspeed.initialize` with the guards around its engine; returns what that returns.

    `engine.unhang` is the `Training`: use it in a `with` statement around the loop, so that an exception in it is told to
    the other ranks also where somebody catches it. Steps of the optimizer are counted, not those that only accumulate.

    Example:
        ```python
        from unhang.integrations.deepspeed import initialize

        model = torch.nn.Linear(2, 1)
        config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True}
        engine, *_ = initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
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
