"""Exceptions: the first one that nobody caught (error.json), and those that the program caught and only printed (handled.jsonl)."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import linecache
import logging
import os
import re
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

from . import facts, flight, recording
from .frames import traceback_places, user_places
from .kept_errors import NO_ERRORS, message_of, plain_text, saw_kept
from .recording import Recording, append_json, attempt, do_not_trace, preceded, step_aside, write_json

_MOST_TEXT = 65536
_MOST_MESSAGE = 8192
_MOST_FRAMES = 64
_UNUSED = "Expected to have finished reduction in the prior iteration"
_INDICES = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")
_NAMES = re.compile(r"Parameters which did not receive grad for rank \d+: ([^\n]+)")
_MOST_EARLIER = 8
_LARGEST_BYTES = 2_000_000
_MOST_HANDLED = 64
_MOST_PRINTED = 2000
_seen: dict[int, set[tuple[object, ...]]] = {}


def describe(error: BaseException, thread: str) -> dict[str, Any]:
    """The content of error.json."""
    message = str(attempt("message of an exception", str, error) or "")
    lines = attempt("text of an exception", traceback.format_exception, type(error), error, error.__traceback__) or []
    return {
        "type": type(error).__name__,
        "message": message[:_MOST_MESSAGE],
        "time_ns": time.time_ns(),
        "thread": thread,
        "frames": traceback_places(error.__traceback__),
        "text": "".join(lines)[-_MOST_TEXT:],
        "parameters": attempt("unused parameters", _unused_parameters, error, message) or [],
        "file": attempt("the file of an exception", file_of, error, message),
    }


def record(error: BaseException | None, thread: str) -> None:
    """Write error.json and flight_exit.pickle for the first uncaught exception; later ones are its consequences."""
    rec = recording.current
    if rec is None or error is None or rec.has_error or isinstance(error, (SystemExit, KeyboardInterrupt)):
        return
    rec.has_error = True
    if thread == "MainThread":
        attempt("what torchrun is told", facts.note_uncaught, rec)
    content = describe(error, thread)
    first, frames = attempt("the first exception of a chain", first_raised, error) or (error, content["frames"])
    if first is not error:
        content |= {**describe(first, thread), "frames": frames[:_MOST_FRAMES], "text": content["text"]}
    if not write_json(rec.path("error.json"), content):
        rec.note("error.json", "the file could not be written")
    flight.dump_at_end(rec)


def watch_hooks() -> None:
    """Chain to the exception hooks of the interpreter and of threads; who replaces ours later is free to do so."""
    sys.excepthook = preceded(sys.excepthook, _saw_uncaught)
    threading.excepthook = preceded(threading.excepthook, _saw_uncaught_in_thread)


def _saw_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    attempt("error.json", record, error, "MainThread")


def _saw_uncaught_in_thread(args: Any) -> None:
    attempt("error.json", record, args.exc_value, getattr(args.thread, "name", ""))


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
            step_aside(error)
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


# What reading a file raises that holds less, or other bytes, than its reader expects.
_TYPES = {
    "JSONDecodeError", "EOFError", "UnpicklingError", "BadZipFile", "BadGzipFile", "ReadError", "UnicodeDecodeError", "SafetensorError",
    "ParserError", "EmptyDataError", "ArrowInvalid", "YAMLError", "ScannerError", "zlib.error", "LZMAError", "BadLZ4File",
}  # fmt: skip
_TEXTS = (
    "PytorchStreamReader failed",
    "unexpected EOF",
    "file is truncated",
    "invalid load key",
    "not a zip file",
    "Cannot load file",
)
_MOST_VALUES = 64
_MOST_PATH = 4096


def file_of(error: BaseException, message: str) -> dict[str, Any] | None:
    """The innermost file that the frames of such an exception know: its path, size in bytes, and when it was written; else None."""
    if type(error).__name__ not in _TYPES and not any(text in message for text in _TEXTS):
        return None
    for value in _values(error.__traceback__):
        path = value if isinstance(value, (str, os.PathLike)) else getattr(value, "name", None)
        try:
            if isinstance(path, (str, os.PathLike)) and 0 < len(os.fspath(path)) < _MOST_PATH:
                found = os.stat(path)
                if stat.S_ISREG(found.st_mode):
                    path = os.path.abspath(os.fspath(path))
                    return {"path": path, "bytes": found.st_size, "written_ns": found.st_mtime_ns}
        except (OSError, ValueError, TypeError):
            continue
    return None


def _values(trace: TracebackType | None) -> Iterator[Any]:
    """The local variables of an exception's frames, those of the innermost first."""
    for frame, _ in reversed(list(traceback.walk_tb(trace))):
        yield from [v for v in frame.f_locals.values() if _may_name_a_file(v)][:_MOST_VALUES]


def _may_name_a_file(value: Any) -> bool:
    kind = type(value)
    return (
        kind is str
        or isinstance(value, os.PathLike)
        or kind.__module__ in ("_io", "io", "tempfile", "gzip", "zipfile", "tarfile")
    )


def _ddp_on_stack(trace: TracebackType | None) -> Any:
    """The DistributedDataParallel instance in whose forward the exception rose: the innermost in any frame's locals."""
    found = None
    for frame, _ in traceback.walk_tb(trace):
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "DistributedDataParallel" and hasattr(value, "parameters_to_ignore"):
                found = value
    return found


def _reduced_parameters(model: Any) -> Iterable[str]:
    """The names in the order in which DDP numbers its parameters."""
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and name not in model.parameters_to_ignore:
            yield name


def first_raised(error: BaseException) -> tuple[BaseException, list[list[object]]]:
    """The first exception of the chain that nobody had handled, and all its frames, innermost first.

    One that was raised while the program handled another is the program's own, and stays.
    """
    outer: list[list[object]] = []
    for _ in range(_MOST_EARLIER):
        earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        common = _common(earlier, error)
        if earlier is None or common is None or not _was_on_its_way(earlier, common):
            break
        inner = len(list(traceback.walk_tb(common)))
        outer = traceback_places(error.__traceback__)[inner:] + outer
        error = earlier
    return error, traceback_places(error.__traceback__) + outer


def _common(earlier: BaseException | None, later: BaseException) -> TracebackType | None:
    """Where the later exception passed the frame in which the earlier one was last seen."""
    seen = earlier.__traceback__ if earlier is not None else None
    at = later.__traceback__
    while seen is not None and at is not None and at.tb_frame is not seen.tb_frame:
        at = at.tb_next
    return at if seen is not None else None


def _was_on_its_way(earlier: BaseException, common: TracebackType) -> bool:
    """Whether the later exception replaced the earlier in the end of a `with`, in a `finally`, or said anew what a collective said."""
    if common.tb_next is None:
        if _is_raise(common) and _is_of_distributed(earlier):
            return True
    elif common.tb_next.tb_frame.f_code.co_name in ("__exit__", "__aexit__"):
        return True
    first = earlier.__traceback__
    file = common.tb_frame.f_code.co_filename
    return first is not None and _is_in_finally(file, first.tb_lineno, common.tb_lineno)


def _is_raise(trace: TracebackType) -> bool:
    """Whether the program itself raised here, and not a function that was written in C."""
    code, at = trace.tb_frame.f_code.co_code, trace.tb_lasti
    return 0 <= at < len(code) and code[at] == dis.opmap["RAISE_VARARGS"]


def _is_of_distributed(error: BaseException) -> bool:
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    file = files[-1] if files else ""
    return "torch/distributed/" in file or recording.is_out_of_torch(error)


def _is_in_finally(file: str, first: int, later: int) -> bool:
    """Whether the later line lies in the `finally` of a `try` that holds the first."""
    text = "".join(linecache.getlines(file))
    if not 0 < len(text) < _LARGEST_BYTES:
        return False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Try) and node.finalbody:
            begin, end = node.finalbody[0].lineno, node.finalbody[-1].end_lineno or 0
            if node.lineno <= first < begin <= later <= end:
                return True
    return False


def _active() -> BaseException | None:
    return sys.exc_info()[1]


def _record_handled(rec: Recording, error: BaseException, printed: str) -> None:
    """Append the exception, once for each handler that prints it."""
    seen = _seen.setdefault(rec.pid, set())
    if len(seen) >= _MOST_HANDLED or isinstance(error, NO_ERRORS):
        return
    places = user_places(1)
    handler = places[0] if places else ("", 0, "")
    # An id alone is not enough: the next exception may get the memory of the one before.
    key = (id(error), id(error.__traceback__), type(error), str(error)[:200], handler)
    if key in seen:
        return
    seen.add(key)
    entry = describe(error, threading.current_thread().name)
    entry["handler"] = list(handler)
    entry["printed"] = printed[:_MOST_PRINTED]
    append_json(rec.path("handled.jsonl"), entry)


def write_held(rec: Recording) -> None:
    """Write held.json: the exception that the main thread has not done with, as in an `except`, a `finally` or an `__exit__`.

    Asked by another thread: no code of the program's own runs for it, such as the `__str__` of its exception.
    """
    found: Any = sys._current_exceptions().get(rec.main_thread_id)
    error = found[1] if isinstance(found, tuple) else found  # before Python 3.12 it is what sys.exc_info() gives
    if error is None or isinstance(error, NO_ERRORS):
        recording.remove(rec.path("held.json"))
        return
    holder = _holder(error, sys._current_frames().get(rec.main_thread_id))
    error, frames = attempt("the first exception of a chain", first_raised, error) or (error, [])
    content = {"type": type(error).__name__, "message": message_of(error), "frames": frames[:_MOST_FRAMES]}
    write_json(rec.path("held.json"), {**content, "handler": holder})


def _holder(error: BaseException, frame: FrameType | None) -> list[object] | None:
    """Where the frame that holds an exception stands now; None where it is not on the stack."""
    trace = error.__traceback__
    while frame is not None and trace is not None:
        if frame is trace.tb_frame:
            return [frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name]
        frame = frame.f_back
    return None


def _saw(printed: str) -> None:
    error = _active()
    if error is not None and recording.current is not None:
        attempt("handled.jsonl", _record_handled, recording.current, error, printed)


def watch_handlers() -> None:
    """Wrap print, logging and traceback printing. Without an exception being handled this costs about 100 ns."""
    builtins.print = _watched_print(builtins.print)
    logging.Logger.handle = preceded(logging.Logger.handle, _saw_record)  # type: ignore[method-assign]
    for name in ("print_exc", "print_exception"):
        setattr(traceback, name, preceded(getattr(traceback, name), _saw_traceback))


def _watched_print(original: Any) -> Any:
    active = getattr(sys, "exception", _active)

    @functools.wraps(original)
    def print(*args: Any, **kwargs: Any) -> None:
        if active() is not None:
            attempt("handled.jsonl", _saw_print, args)
        try:
            if kwargs:
                return original(*args, **kwargs)  # type: ignore[no-any-return]
            return original(*args)  # type: ignore[no-any-return]
        except BaseException as error:
            step_aside(error)
            raise

    return do_not_trace(print)


def _saw_print(args: tuple[object, ...]) -> None:
    if recording.current is not None:
        _saw(plain_text(args))


def _saw_record(logger: logging.Logger, record: logging.LogRecord) -> None:
    if recording.current is None:
        return
    if _active() is not None:
        _saw(attempt("text of a log record", record.getMessage) or str(record.msg))
    elif logger.name == "asyncio" and isinstance(
        record.exc_info, tuple
    ):  # a task is freed, and nobody had asked for it
        saw_kept(None, record.exc_info[1])


def _saw_traceback(*args: Any, **kwargs: Any) -> None:
    _saw("(traceback)")
