"""Compares the replicas of every model that DDP wraps, for `unhang verify --replicas`: the script calls nothing."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unhang.inside.imports import act_after_import

VARIABLE = "UNHANG_REPLICAS_EVERY"
EVERY = 10
_BOOTSTRAP = Path(__file__).parent / "bootstrap"
_LIMIT_S = 30.0


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job whose replicas are compared after every tenth optimizer step."""
    path = os.pathsep.join(part for part in (str(_BOOTSTRAP), environ.get("PYTHONPATH", "")) if part)
    return {**environ, "PYTHONPATH": path, VARIABLE: environ.get(VARIABLE, str(EVERY))}


def watch() -> None:
    """Has every DDP module over all ranks be compared, from its making on."""
    act_after_import({"torch.nn.parallel.distributed": _wrap})


def _wrap(module: Any) -> None:
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _compare(self)

    module.DistributedDataParallel.__init__ = init


def _compare(model: Any) -> None:
    """Nothing in it reaches the training."""
    import torch.distributed as dist

    from unhang.inside.guards.replicas import TAG, check_replicas
    from unhang.inside.guards.words import in_words, log

    try:
        if dist.get_world_size(model.process_group) == dist.get_world_size():
            every = max(1, int(os.environ.get(VARIABLE, EVERY)))
            check_replicas(model, every=every, limit_s=_LIMIT_S)
            if dist.get_rank() == 0:
                log(TAG, f"comparing a model after every {every} optimizer steps")
        else:
            log(TAG, "not compared: a model that DDP wraps over some of the ranks")
    except Exception as error:  # noqa: BLE001
        log(TAG, f"not compared: {in_words(error)}")
