"""How the program ends: os._exit, sys.exit, or its end; exit.json says which, and from which line."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import errors_seen, flight, page, recording
from .frames import user_places
from .recording import Recording, attempt
from .writing import write_json


def watch(stop_thread: Callable[[], None]) -> None:
    """Wrap os._exit and sys.exit and register for the end. Registered early, so it runs after the program's own."""
    if not hasattr(os._exit, "_unhang"):
        os._exit = _watched(os._exit, _before_os_exit)
        sys.exit = _watched(sys.exit, _before_sys_exit)
    atexit.register(_at_end, os.getpid(), stop_thread)


def _watched(original: Callable[..., Any], before: Callable[[Recording, Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def leave(*args: Any, **kwargs: Any) -> Any:
        if recording.current is not None:
            attempt("exit.json", before, recording.current, args[0] if args else kwargs.get("status"))
        return original(*args, **kwargs)

    leave._unhang = True  # type: ignore[attr-defined]
    return leave


def _write(rec: Recording, kind: str, code: int | None, limit: int = 6) -> None:
    frames = [list(place) for place in user_places(limit)]
    content = {"kind": kind, "code": code, "time_ns": time.time_ns(), "frames": frames}
    if not write_json(rec.path("exit.json"), content):
        rec.note("exit.json", "the file could not be written")


def _before_os_exit(rec: Recording, status: Any) -> None:
    code = status if isinstance(status, int) else None
    if _is_multiprocessing_exit():
        # A child forked by multiprocessing always ends like this: it came to its end.
        rec.page.words[page.ENDED] = 1
        if not rec.is_exit_known:
            _write(rec, "exit", code, 0)
    elif not (rec.is_exit_known and code == rec.exit_code):
        # A launcher that forks ends its children so after their sys.exit, whose frames say more.
        _write(rec, "os._exit", code)
    if code != 0:
        flight.dump_at_end(rec)


def _is_multiprocessing_exit() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
        frame = frame.f_back
    return frame.f_code.co_filename.endswith(("multiprocessing/popen_fork.py", "multiprocessing/forkserver.py"))


def _before_sys_exit(rec: Recording, status: Any) -> None:
    if threading.get_ident() != rec.main_thread_id:
        # In another thread SystemExit ends only that thread.
        return
    rec.exit_code = status if isinstance(status, int) else 0 if status is None else 1
    rec.is_exit_known = True
    _write(rec, "sys.exit", rec.exit_code)


def _at_end(pid: int, stop_thread: Callable[[], None]) -> None:
    rec = recording.current
    if rec is not None and rec.pid == pid == os.getpid():
        attempt("exit.json", _end, rec)
        attempt("control thread", stop_thread)


def _end(rec: Recording) -> None:
    # The interpreter keeps the last uncaught exception here, also when a later hook did not call ours.
    errors_seen.record(getattr(sys, "last_value", None), "MainThread")
    flight.dump_at_end(rec)
    if not rec.is_exit_known:
        _write(rec, "exit", 1 if rec.has_error else None, 0)
    rec.page.words[page.ENDED] = 1
