"""Marks what the training does (data, backward, optimizer, checkpoint) and counts optimizer steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from threading import get_ident
from typing import Any

from . import page, recording
from .compiler import do_not_trace
from .imports import Action


def _marked(original: Any, phase: int) -> Any:
    """Only the main thread marks: a thread that saves a checkpoint must not hide what the training does."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        if rec is None or get_ident() != rec.main_thread_id:
            return original(*args, **kwargs)
        before = rec.page.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            rec.page.enter(before)

    return do_not_trace(call)


def _watch_optimizer(module: Any) -> None:
    module.register_optimizer_step_pre_hook(do_not_trace(_before_step))
    module.register_optimizer_step_post_hook(do_not_trace(_after_step))


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    rec = recording.current
    if rec is not None:
        rec.page.enter(page.OPTIMIZER)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    rec = recording.current
    if rec is not None:
        rec.page.count_step()
        rec.page.enter(page.NONE)


def _watch_data(module: Any) -> None:
    iterator, loader = module._BaseDataLoaderIter, module.DataLoader
    iterator.__next__ = _marked(iterator.__next__, page.DATA)
    loader.__iter__ = _marked(loader.__iter__, page.DATA)


def _watch_backward(module: Any) -> None:
    # Tensor.backward calls this function by its module's attribute; the method itself stays untouched.
    module.backward = _marked(module.backward, page.BACKWARD)


def _watch_save(module: Any) -> None:
    module.save = _marked(module.save, page.CHECKPOINT)


ACTIONS: Mapping[str, Action] = {
    "torch.optim.optimizer": _watch_optimizer,
    "torch.utils.data.dataloader": _watch_data,
    "torch.autograd": _watch_backward,
    "torch.serialization": _watch_save,
    "torch.distributed.checkpoint.state_dict_saver": _watch_save,
}
