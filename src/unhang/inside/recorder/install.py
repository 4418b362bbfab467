"""Starts the recorder in this process: everything is hung onto torch's modules as they are imported, the marks of its phases too."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import get_ident
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..imports import Action, act_after_import
from . import announce, calls, errors_seen, facts, frames, kept_errors, recording
from .flight import reductions
from .recording import attempt, do_not_trace, step_aside

Seen = Callable[[recording.Recording, Any], None]
_C10D = "torch.distributed.distributed_c10d"
_MARK = "_unhang_recorder_installed"
# The buffer size of the flight recorder as older torch calls it: this torch would warn about it in every rank.
OLD_NAME = "TORCH_NCCL_TRACE_BUFFER_SIZE"
ADDED_BY_US = "UNHANG_ADDED"
# From here on torch surely knows the new name, TORCH_FR_BUFFER_SIZE.
_KNOWS_NEW_NAME = (2, 10)


def install() -> None:
    """Install once per process; without UNHANG_RUN_DIR nothing happens. Never raises.

    Forked children inherit the wrappers and become recorded ranks of their own when they call init_process_group.
    """
    if not os.environ.get("UNHANG_RUN_DIR") or hasattr(sys, _MARK):
        return
    # On `sys`, because this package may be loaded twice: by the bootstrap, and as unhang.inside.recorder.
    setattr(sys, _MARK, True)
    os.register_at_fork(after_in_child=_after_fork)
    actions = {_C10D: _watch_c10d, **PHASES, **_OTHERS}
    attempt("hooks", act_after_import, {name: partial(attempt, f"hook {name}", act) for name, act in actions.items()})


def _after_fork() -> None:
    attempt("fork", calls.forget_in_child)
    attempt("fork", facts.forget_in_child)
    attempt("fork", reductions.forget_in_child)
    attempt("fork", recording.forget_in_child)


def _watch_c10d(c10d: Any) -> None:
    bindings = sys.modules.get("torch._C._distributed_c10d")
    attempt("settings", drop_old_names)
    attempt("announcing the rank", announce.announce_at_import)
    if bindings is None:
        recording.note("torch.distributed", "this torch was built without it")
        return
    attempt("calls", calls.watch, c10d)
    attempt("store waits", calls.watch_store, bindings)
    attempt("completion of isend and irecv", calls.watch_work, bindings)
    attempt("tensors of collectives", facts.watch_tensors, c10d, bindings)


def torch_version() -> tuple[int, int] | None:
    """Major and minor version of the torch that is loaded."""
    text = getattr(sys.modules.get("torch"), "__version__", "")
    parts = str(text).split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    return int(parts[0]), int(parts[1])


def drop_old_names() -> None:
    """Unset the old name of the recorder's buffer size where unhang had set it and torch knows the new one."""
    version = torch_version()
    if version is not None and version >= _KNOWS_NEW_NAME and os.environ.pop(ADDED_BY_US, "") == OLD_NAME:
        os.environ.pop(OLD_NAME, None)


def skip_our_frames(eval_frame: Any) -> None:
    """Have the frame evaluator run all our code as it is; called when the program loads torch._dynamo."""
    skip = eval_frame.skip_code
    package = __name__.rpartition(".")[0]
    ours = (package, package.rpartition(".")[0] + ".imports")
    for name, module in list(sys.modules.items()):
        if name.startswith(ours):
            for code in _codes_of(module):
                skip(code)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            function = getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


_OTHERS: Mapping[str, Action] = {
    "multiprocessing.process": errors_seen.watch_processes,
    "torch.multiprocessing.spawn": errors_seen.watch_spawn,
    "torch._dynamo.eval_frame": skip_our_frames,
    "torch.nn.parallel.distributed": partial(facts.watch_wrapper, "DistributedDataParallel"),
    "torch.distributed.fsdp.fully_sharded_data_parallel": partial(facts.watch_wrapper, "FullyShardedDataParallel"),
    "torch.distributed.fsdp._fully_shard._fully_shard": facts.watch_fully_shard,
    "threading": frames.watch_threads,
    "concurrent.futures.thread": frames.watch_executors,
    "concurrent.futures._base": kept_errors.watch_futures,
}


def _marked(original: Any, phase: int, before: Seen | None = None, after: Seen | None = None) -> Any:
    """Only the main thread marks: a thread that saves a checkpoint must not hide what the training does.

    `before` sees the object whose method it is, `after` what comes back.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        is_marked = rec is not None and get_ident() == rec.main_thread_id
        if rec is None or not is_marked:
            return original(*args, **kwargs)
        earlier = rec.page.enter(phase)
        if before is not None:
            before(rec, args[0])
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            step_aside(error)
            raise
        finally:
            rec.page.enter(earlier)
        if after is not None:
            after(rec, result)
        return result

    return do_not_trace(call)


def _watch_optimizer(module: Any) -> None:
    module.register_optimizer_step_pre_hook(do_not_trace(_before_step))
    module.register_optimizer_step_post_hook(do_not_trace(_after_step))


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    rec = recording.current
    if rec is not None:
        rec.page.enter(recording.OPTIMIZER)


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    rec = recording.current
    if rec is not None:
        rec.page.count_step()
        rec.page.enter(recording.NONE)


def _watch_scaler(module: Any) -> None:
    """Counts the steps that a GradScaler leaves out: for those no hook of the optimizer is called."""
    scaler = module.GradScaler
    original = vars(scaler).get("_maybe_opt_step")  # a class that merely inherits it is watched where it is defined
    if original is None:
        return

    @functools.wraps(original)
    def call(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        rec = recording.current
        before = rec.page.words[recording.STEPS] if rec is not None else 0
        result = original(self, optimizer, state, *args, **kwargs)
        if rec is not None:
            recording.attempt("skipped steps", _count_scaled, rec.page, before, state)
        return result

    scaler._maybe_opt_step = do_not_trace(call)


def _count_scaled(counts: recording.Page, before: int, state: Any) -> None:
    """Asks the scaler's own verdict only where no step was counted: the scaler has just waited for it."""
    was_counted = counts.words[recording.STEPS] != before
    counts.count_skipped(not was_counted and any(v.item() for v in state["found_inf_per_device"].values()))


def _watch_data(module: Any) -> None:
    iterator, loader = module._BaseDataLoaderIter, module.DataLoader
    iterator.__next__ = facts.watch_end(_marked(iterator.__next__, recording.DATA, after=facts.count_batch))
    loader.__iter__ = _marked(loader.__iter__, recording.DATA, before=facts.watch_loader)


def _watch_backward(module: Any) -> None:
    # Tensor.backward calls this function by its module's attribute; the method itself stays untouched.
    module.backward = _marked(module.backward, recording.BACKWARD)


def _watch_save(module: Any) -> None:
    module.save = _marked(module.save, recording.CHECKPOINT)


PHASES: Mapping[str, Action] = {
    "torch.optim.optimizer": _watch_optimizer,
    "torch.amp.grad_scaler": _watch_scaler,
    "torch.cuda.amp.grad_scaler": _watch_scaler,
    "torch.utils.data.dataloader": _watch_data,
    "torch.autograd": _watch_backward,
    "torch.serialization": _watch_save,
    "torch.distributed.checkpoint.state_dict_saver": _watch_save,
}
