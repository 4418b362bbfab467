"""Exceptions with which work that was given away has ended: kept in a future or a task for whoever asks for its result, if anybody does."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

from . import recording
from .frames import traceback_places
from .recording import attempt, preceded

NO_ERRORS = (GeneratorExit, StopIteration, SystemExit, KeyboardInterrupt)
_PLAIN = (str, bytes, int, float, bool, type(None), BaseException)
_MOST_FRAMES = 64
_MOST_MESSAGE = 8192
_MOST_KEPT, _MOST_TASKS = 16, 4096
# Words: the exceptions themselves would hold what their frames have.
_kept: deque[dict[str, Any]] = deque(maxlen=_MOST_KEPT)


def watch_futures(module: Any) -> None:
    """See what ends the work that an executor runs."""
    module.Future.set_exception = preceded(module.Future.set_exception, saw_kept)


def saw_kept(_: Any, error: BaseException | None) -> None:
    """Remember an exception that a future gets, or that of a task of which the event loop says that nobody has asked for it."""
    if recording.current is not None and error is not None and not isinstance(error, NO_ERRORS):
        attempt("exceptions kept", lambda: _kept.append(_in_words(error, time.time_ns())))


def kept_errors() -> list[dict[str, Any]]:
    """Those of futures, and of tasks of asyncio that have ended and that nobody has asked; asked by another thread."""
    tasks = sys.modules.get("asyncio.tasks")
    found = list(_kept)
    for name in ("_all_tasks", "_scheduled_tasks"):  # by the version of Python
        for task in list(getattr(tasks, name, ()))[:_MOST_TASKS]:
            error = getattr(task, "_exception", None) if getattr(task, "_log_traceback", False) else None
            if error is not None and not isinstance(error, NO_ERRORS):
                found.append(_in_words(error, 0))
    return found[-_MOST_KEPT:]


def _in_words(error: BaseException, time_ns: int) -> dict[str, Any]:
    frames = traceback_places(error.__traceback__)[:_MOST_FRAMES]
    return {"type": type(error).__name__, "message": message_of(error), "time_ns": time_ns, "frames": frames}


def message_of(error: BaseException) -> str:
    """What the exception says, without calling a `__str__` that the program has written."""
    is_own = any("__str__" in vars(c) for c in type(error).__mro__ if c.__module__ != "builtins")
    is_plain = not is_own and all(isinstance(value, _PLAIN) for value in error.args)
    return (str(error) if is_plain else plain_text(error.args))[:_MOST_MESSAGE]


def plain_text(values: tuple[object, ...]) -> str:
    """What print will write, without calling the str() of objects that might be expensive (a tensor on a device)."""
    return " ".join(str(v) if isinstance(v, _PLAIN) else f"<{type(v).__name__}>" for v in values)
