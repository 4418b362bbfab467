"""How the program ends: fatal signals, also those that it sends to itself, os._exit, sys.exit, or its end; exit.json says which, and from which line."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from . import errors_seen, flight, recording
from .frames import user_places
from .recording import Recording, attempt, write_json

STACKS_SIGNAL_OFFSET = 5
_UNDONE = (signal.SIG_DFL, signal.default_int_handler)
_PR_SET_PTRACER = 0x59616D61
_ABORTED = b"Fatal Python error: Aborted"
# libc's sleep(SIGABRT) takes as many seconds as the signal's number.
_SLEEP_S = float(signal.SIGABRT)


def watch(stop_thread: Callable[[], None]) -> None:
    """Wrap os._exit and sys.exit and register for the end. Registered early, so it runs after the program's own."""
    if not hasattr(os._exit, "_unhang"):
        os._exit = _watched(os._exit, _before_os_exit)
        sys.exit = _watched(sys.exit, _before_sys_exit)
        os.kill = _watched_kill(os.kill, lambda: (os.getpid(), 0, -1, -os.getpgrp()))
        os.killpg = _watched_kill(os.killpg, lambda: (os.getpgrp(), 0))
    atexit.register(_at_end, os.getpid(), stop_thread)


def _watched(original: Callable[..., Any], before: Callable[[Recording, Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def leave(*args: Any, **kwargs: Any) -> Any:
        if recording.current is not None:
            attempt("exit.json", before, recording.current, args[0] if args else kwargs.get("status"))
        return original(*args, **kwargs)

    leave._unhang = True  # type: ignore[attr-defined]
    return leave


def _watched_kill(original: Callable[[int, int], None], reach_us: Callable[[], Sequence[int]]) -> Callable[..., None]:
    """Of os.kill or os.killpg: a signal that reaches the rank itself is noted before it is sent."""

    @functools.wraps(original)
    def kill(target: int, number: int, /) -> None:
        rec = recording.current
        if rec is not None and rec.pid == os.getpid() and number and target in reach_us():
            attempt("exit.json", _before_kill, rec, number)
        return original(target, number)

    return kill


def _before_kill(rec: Recording, number: int) -> None:
    if signal.getsignal(number) in (signal.SIG_DFL, None):  # SIGKILL among them
        _write(rec, "kill", -int(number))


def _write(rec: Recording, kind: str, code: int | None, limit: int = 6) -> None:
    frames = [list(place) for place in user_places(limit)]
    content = {"kind": kind, "code": code, "time_ns": time.time_ns(), "frames": frames}
    if not write_json(rec.path("exit.json"), content):
        rec.note("exit.json", "the file could not be written")


def _before_os_exit(rec: Recording, status: Any) -> None:
    code = status if isinstance(status, int) else None
    if _is_multiprocessing_exit():
        # A child forked by multiprocessing always ends like this: it came to its end.
        rec.page.words[recording.ENDED] = 1
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
    rec.page.words[recording.ENDED] = 1


def stacks_signal() -> int:
    """The real-time signal at which all threads' stacks are written into faulthandler.txt."""
    return int(signal.SIGRTMIN) + STACKS_SIGNAL_OFFSET


def start_faulthandler(recording: Recording) -> None:
    """Enable faulthandler into the rank's own file, above the handler that keeps an aborted process for a moment."""
    file = open(recording.path("faulthandler.txt"), "a", encoding="utf-8")  # noqa: SIM115
    recording.at_fork.append(_Undo(file, [stacks_signal()]))
    if faulthandler.is_enabled():
        recording.note("faulthandler.txt: fatal signals", "the program has enabled faulthandler itself")
    else:
        _sleep_on_abort(recording)
        faulthandler.enable(file=file, all_threads=True)
        recording.at_fork.append(_disable)
    faulthandler.register(stacks_signal(), file=file, all_threads=True, chain=False)


def keep_end(recording: Recording) -> None:
    """Have the stacks written at the moment at which SIGINT or SIGTERM comes; then what would have happened happens.

    Only where nobody handles or ignores the signal: a handler that the program installs later takes our place.
    """
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) in _UNDONE]
    file = open(recording.path("interrupt.txt"), "a", encoding="utf-8")  # noqa: SIM115
    for number in numbers:
        faulthandler.register(number, file=file, all_threads=True, chain=True)
    recording.at_fork.append(_Undo(file, numbers))


def allow_tracer(recording: Recording) -> None:
    """Let the agent's py-spy read our stacks where ptrace is limited to ancestors (Yama)."""
    tracer = os.environ.get("UNHANG_TRACER_PID", "")
    if tracer.isdigit():
        prctl = ctypes.CDLL(None).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        prctl(_PR_SET_PTRACER, int(tracer), 0, 0, 0)


def _sleep_on_abort(recording: Recording) -> None:
    """Put libc's `sleep` below faulthandler's handler of SIGABRT.

    faulthandler writes the stacks and raises SIGABRT again, `sleep(6)` keeps the process, and torch's worker server, a
    C++ thread, still answers. No code of ours, no malloc and no GIL is involved. sysv_signal resets the disposition
    when the handler is entered, so that the next SIGABRT is deadly as it was without us.
    """
    if signal.getsignal(signal.SIGABRT) != signal.SIG_DFL:
        recording.note("survival of an abort", "the program handles SIGABRT itself")
        return
    libc: Any = ctypes.CDLL(None)
    _on_abort(getattr(libc, "sysv_signal", None) or libc.signal, ctypes.cast(libc.sleep, ctypes.c_void_p))


def _disable() -> None:
    """In a forked child: its death is not the rank's."""
    faulthandler.disable()
    _on_abort(ctypes.CDLL(None).signal, None)


def _on_abort(install: Any, handler: Any) -> None:
    install.argtypes, install.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    install(int(signal.SIGABRT), handler)


class _Undo:
    """Holds the file open for faulthandler, which keeps only its number; in a forked child both go.

    What took our place stays: faulthandler would put back what it found before.
    """

    def __init__(self, file: TextIO, numbers: Sequence[int]) -> None:
        self._file, self._numbers = file, numbers

    def __call__(self) -> None:
        for number in self._numbers:
            if signal.getsignal(number) in _UNDONE:
                faulthandler.unregister(number)
        self._file.close()


class AbortWatch:
    """Finishes what SIGABRT began when it came from outside.

    abort() kills the process itself once the handler returns; `kill -ABRT` does not, and the process would live on
    where it would have died without us. So it is killed before the sleep is over; a main thread that sent the signal to
    itself holds the GIL while it sleeps, and is killed at once after that: the file shows how long ago it was.
    """

    def __init__(self, recording: Recording) -> None:
        self._path = recording.path("faulthandler.txt")
        self._size = 0
        self._kill_at: float | None = None

    def check(self) -> None:
        """Called each turn of the control thread; one stat as long as nothing happens."""
        if self._kill_at is not None:
            if time.monotonic() >= self._kill_at:
                os.kill(os.getpid(), signal.SIGABRT)
            return
        try:
            found = os.stat(self._path)
        except OSError:
            return
        if found.st_size != self._size:
            self._size = found.st_size
            with open(self._path, "rb") as file:
                if _ABORTED in file.read():
                    age_s = max(0.0, time.time() - found.st_mtime)
                    self._kill_at = time.monotonic() + max(0.0, _SLEEP_S - 1 - age_s)
                    self.check()
