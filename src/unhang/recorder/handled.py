"""Exceptions that the program caught and only printed or logged: the usual way in which one rank leaves the others."""

from __future__ import annotations

import builtins
import functools
import logging
import sys
import threading
import traceback
from typing import Any

from . import errors_seen, recording
from .compiler import do_not_trace
from .frames import user_places
from .recording import Recording, attempt
from .writing import append_json

_MOST = 64
_MOST_PRINTED = 2000
_PLAIN = (str, bytes, int, float, bool, type(None), BaseException)

_seen: dict[int, set[tuple[object, ...]]] = {}


def _active() -> BaseException | None:
    return sys.exc_info()[1]


def _record(rec: Recording, error: BaseException, printed: str) -> None:
    """Append the exception, once for each handler that prints it."""
    seen = _seen.setdefault(rec.pid, set())
    if len(seen) >= _MOST or isinstance(error, (GeneratorExit, StopIteration, SystemExit, KeyboardInterrupt)):
        return
    places = user_places(1)
    handler = places[0] if places else ("", 0, "")
    # An id alone is not enough: the next exception may get the memory of the one before.
    key = (id(error), id(error.__traceback__), type(error), str(error)[:200], handler)
    if key in seen:
        return
    seen.add(key)
    entry = errors_seen.describe(error, threading.current_thread().name)
    entry["handler"] = list(handler)
    entry["printed"] = printed[:_MOST_PRINTED]
    append_json(rec.path("handled.jsonl"), entry)


def _saw(printed: str) -> None:
    """Called with an exception being handled, or not."""
    error = _active()
    if error is not None and recording.current is not None:
        attempt("handled.jsonl", _record, recording.current, error, printed)


def _plain_text(values: tuple[object, ...]) -> str:
    """What print will write, without calling the str() of objects that might be expensive (a tensor on a device)."""
    return " ".join(str(v) if isinstance(v, _PLAIN) else f"<{type(v).__name__}>" for v in values)


def watch() -> None:
    """Wrap print, logging and traceback printing. Without an exception being handled this costs about 100 ns."""
    builtins.print = _watched_print(builtins.print)
    logging.Logger.handle = _watched_handle(logging.Logger.handle)  # type: ignore[method-assign]
    for name in ("print_exc", "print_exception"):
        setattr(traceback, name, _watched_traceback(getattr(traceback, name)))


def _watched_print(original: Any) -> Any:
    active = getattr(sys, "exception", _active)

    @functools.wraps(original)
    def print(*args: Any, **kwargs: Any) -> None:
        if active() is not None:
            attempt("handled.jsonl", _saw_print, args)
        if kwargs:
            return original(*args, **kwargs)  # type: ignore[no-any-return]
        return original(*args)  # type: ignore[no-any-return]

    return do_not_trace(print)


def _saw_print(args: tuple[object, ...]) -> None:
    if recording.current is not None:
        _saw(_plain_text(args))


def _watched_handle(original: Any) -> Any:
    @functools.wraps(original)
    def handle(self: logging.Logger, record: logging.LogRecord) -> Any:
        if _active() is not None and recording.current is not None:
            _saw(attempt("text of a log record", record.getMessage) or str(record.msg))
        return original(self, record)

    return do_not_trace(handle)


def _watched_traceback(original: Any) -> Any:
    @functools.wraps(original)
    def print_traceback(*args: Any, **kwargs: Any) -> Any:
        _saw("(traceback)")
        return original(*args, **kwargs)

    return do_not_trace(print_traceback)
