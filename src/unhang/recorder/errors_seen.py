"""Describes exceptions, and writes the first one that nobody caught: error.json and the calls before it."""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from . import flight, recording
from .first_raised import first_raised
from .frames import traceback_places
from .recording import attempt
from .writing import write_json

_MOST_TEXT = 65536
_MOST_MESSAGE = 8192
_MOST_FRAMES = 64
_UNUSED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
_NAMES = re.compile(r"Parameters which did not receive grad for rank \d+: ([^\n]+)")


def describe(error: BaseException, thread: str) -> dict[str, Any]:
    """The content of error.json."""
    message = str(attempt("message of an exception", str, error) or "")
    lines = attempt("text of an exception", _format, error) or []
    return {
        "type": type(error).__name__,
        "message": message[:_MOST_MESSAGE],
        "time_ns": time.time_ns(),
        "thread": thread,
        "frames": traceback_places(error.__traceback__),
        "text": "".join(lines)[-_MOST_TEXT:],
        "parameters": attempt("unused parameters", _unused_parameters, error, message) or [],
    }


def _format(error: BaseException) -> list[str]:
    return traceback.format_exception(type(error), error, error.__traceback__)


def record(error: BaseException | None, thread: str) -> None:
    """Write error.json and flight_exit.pickle for the first uncaught exception; later ones are its consequences."""
    rec = recording.current
    if rec is None or error is None or rec.has_error or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return
    rec.has_error = True
    content = describe(error, thread)
    first, frames = attempt("the first exception of a chain", first_raised, error) or (error, content["frames"])
    if first is not error:
        content |= {**describe(first, thread), "frames": frames[:_MOST_FRAMES], "text": content["text"]}
    if not write_json(rec.path("error.json"), content):
        rec.note("error.json", "the file could not be written")
    flight.dump_at_end(rec)


def watch_hooks() -> None:
    """Chain to the exception hooks of the interpreter and of threads; who replaces ours later is free to do so."""
    sys.excepthook = _chained_excepthook(sys.excepthook)
    threading.excepthook = _chained_thread_hook(threading.excepthook)


def _chained_excepthook(before: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(before)
    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        attempt("error.json", record, error, "MainThread")
        return before(kind, error, trace)

    return excepthook


def _chained_thread_hook(before: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(before)
    def thread_excepthook(args: Any) -> Any:
        attempt("error.json", record, args.exc_value, getattr(args.thread, "name", ""))
        return before(args)

    return thread_excepthook


def watch_processes(process_module: Any) -> None:
    """See what escapes from a multiprocessing target: Process._bootstrap prints it, no exception hook is called."""
    process_module.BaseProcess.run = _recorded(process_module.BaseProcess.run)


def watch_spawn(spawn_module: Any) -> None:
    """See what torch.multiprocessing.spawn catches around the user's function and pickles for the parent."""
    original = spawn_module._wrap

    @functools.wraps(original)
    def _wrap(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(_recorded(fn), *args, **kwargs)

    spawn_module._wrap = _wrap


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            attempt("error.json", record, error, threading.current_thread().name)
            raise

    # A functools.partial or a callable object has no __name__; wraps() copies what there is.
    return functools.wraps(function)(call)


def _unused_parameters(error: BaseException, message: str) -> list[str]:
    """Names for the indices in DDP's complaint about parameters without a gradient."""
    if _UNUSED not in message:
        return []
    named = _NAMES.search(message)
    if named:
        return [name.strip() for name in named.group(1).split(",")]
    indices = _INDICES.search(message)
    model = _ddp_on_stack(error.__traceback__)
    if indices is None or model is None:
        return []
    names = list(_reduced_parameters(model))
    return [names[int(index)] for index in indices.group(1).split() if int(index) < len(names)]


def _ddp_on_stack(trace: TracebackType | None) -> Any:
    """The DistributedDataParallel instance in whose forward the exception rose: the innermost in any frame's locals."""
    found = None
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            if type(value).__name__ == "DistributedDataParallel" and hasattr(value, "parameters_to_ignore"):
                found = value
        trace = trace.tb_next
    return found


def _reduced_parameters(model: Any) -> Iterable[str]:
    """The names in the order in which DDP numbers its parameters."""
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and name not in model.parameters_to_ignore:
            yield name
