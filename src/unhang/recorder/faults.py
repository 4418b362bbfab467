"""Fatal signals and stacks on request, written by C code that needs neither the GIL nor memory (faulthandler)."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import time
from typing import Any, TextIO

from .recording import Recording

STACKS_SIGNAL_OFFSET = 5
_PR_SET_PTRACER = 0x59616D61
_ABORTED = b"Fatal Python error: Aborted"
# libc's sleep(SIGABRT) takes as many seconds as the signal's number.
_SLEEP_S = float(signal.SIGABRT)


def stacks_signal() -> int:
    """The real-time signal at which all threads' stacks are written into faulthandler.txt."""
    return int(signal.SIGRTMIN) + STACKS_SIGNAL_OFFSET


def start(recording: Recording) -> None:
    """Enable faulthandler into the rank's own file, above the handler that keeps an aborted process for a moment."""
    file = open(recording.path("faulthandler.txt"), "a", encoding="utf-8")  # noqa: SIM115
    recording.at_fork.append(_Undo(file))
    if faulthandler.is_enabled():
        recording.note("faulthandler.txt: fatal signals", "the program has enabled faulthandler itself")
    else:
        _sleep_on_abort(recording)
        faulthandler.enable(file=file, all_threads=True)
        recording.at_fork.append(_disable)
    faulthandler.register(stacks_signal(), file=file, all_threads=True, chain=False)


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
    install = getattr(libc, "sysv_signal", None) or libc.signal
    install.argtypes = [ctypes.c_int, ctypes.c_void_p]
    install.restype = ctypes.c_void_p
    install(int(signal.SIGABRT), ctypes.cast(libc.sleep, ctypes.c_void_p))


def _disable() -> None:
    """In a forked child: its death is not the rank's."""
    faulthandler.disable()
    signal_function: Any = ctypes.CDLL(None).signal
    signal_function.argtypes = [ctypes.c_int, ctypes.c_void_p]
    signal_function.restype = ctypes.c_void_p
    signal_function(int(signal.SIGABRT), None)


class _Undo:
    """Holds the file open for faulthandler, which keeps only its number; closes it in a forked child."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self) -> None:
        faulthandler.unregister(stacks_signal())
        self._file.close()


class AbortWatch:
    """Finishes what SIGABRT began when it came from outside.

    abort() kills the process itself once the handler returns; `kill -ABRT` does not, and the process would live on
    where it would have died without us. So it is killed before the sleep is over; a main thread that sent the signal to
    itself holds the GIL while it sleeps, and is killed at once after that: the file tells how long ago it was.
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
