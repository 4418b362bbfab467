"""Work beside the training: daemon threads that end with the process, waits that have a limit, and where a thread stands."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TypeVar
from weakref import WeakSet

from unhang.inside.guards.words import log

T = TypeVar("T")
_AFTER_ERROR_S = 1.0
_STOP_LIMIT_S = 1.0
_MOST_FRAMES = 17
_INSIDE = os.path.dirname(os.path.dirname(__file__))
_FOREIGN = ("site-packages", "dist-packages", "/lib/python3", "<frozen", _INSIDE)
_running: WeakSet[Worker] = WeakSet()
_last: list[Callable[[], None]] = []


def limited(work: Callable[[], T], limit_s: float, otherwise: T) -> T:
    """What `work` returns; `otherwise` if it raises or does not come back. Blocks up to `limit_s`."""
    results: list[T] = []

    def run() -> None:
        with suppress(Exception):
            results.append(work())

    thread = threading.Thread(target=run, name="unhang-limited", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads: then without
        return otherwise
    thread.join(limit_s)
    return results[0] if results else otherwise


def polled(is_so: Callable[[], object], limit_s: float, pause_s: float = 0.05) -> bool:
    """Whether it is so within the limit. Blocks up to `limit_s`, and for as long as the question itself."""
    until = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(pause_s)
    return True


class Wakeup:
    """Wakes the one thread that waits for it; set while nobody waits, it ends the next wait at once.

    A `threading.Event` runs some hundred lines of Python at each wait, which are in no cache when a thread wakes now and then
    in the midst of a training; this is one call.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()

    def set(self) -> None:
        """Never waits, also in a signal handler."""
        try:
            self._lock.release()
        except RuntimeError:  # it is set already
            pass

    def wait(self, limit_s: float | None) -> bool:
        """Whether it was set. Blocks up to `limit_s`, or for ever where that is None."""
        return self._lock.acquire(timeout=-1 if limit_s is None else max(0.0, limit_s))


class Worker:
    """A daemon thread that calls `turn` again and again.

    `turn` returns the seconds until its next call, None to sleep until `wake`, or END. An error in it is logged once. Where the
    process may start no more threads, that is logged, and nothing is called.
    The threads are ended before the interpreter is taken apart: one that comes back from C++ code then ends the process
    with SIGABRT.
    """

    END = -1.0

    def __init__(
        self, name: str, turn: Callable[[], float | None], delay_s: float = 0.0, *, raises: bool = False
    ) -> None:
        """`delay_s`: before the first turn. `raises`: RuntimeError where the process may start no more threads."""
        self._turn = turn
        self._name = name
        self._wakeup = Wakeup()
        self._is_stopped = False
        self._delay_s = delay_s
        self._has_logged = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            if raises:
                raise
            if "shutdown" not in str(error):  # an interpreter that ends starts none any more
                log("unhang", f"{name}: {error}; the training goes on without it")
            self._is_stopped = True
        else:
            _running.add(self)

    def wake(self) -> None:
        """Has the next turn begin now; never waits."""
        self._wakeup.set()

    def stop(self, limit_s: float = _STOP_LIMIT_S) -> None:
        """Ends the thread after the turn under way. Blocks up to `limit_s`."""
        self._is_stopped = True
        self._wakeup.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)

    def _run(self) -> None:
        if self._delay_s:
            self._wakeup.wait(self._delay_s)
        while not self._is_stopped:
            try:
                pause_s = self._turn()
                if pause_s == Worker.END:
                    return
            except Exception as error:  # noqa: BLE001 - nothing of ours may end in the training's output as a traceback
                pause_s = _AFTER_ERROR_S
                if not self._has_logged:
                    self._has_logged = True
                    log("unhang", f"{self._name}: {type(error).__name__}: {error}")
            if not self._is_stopped:
                self._wakeup.wait(pause_s)  # whoever called `wake` during the turn has us come again


def _stop_all() -> None:
    running = list(_running)
    for worker in running:
        worker.stop(0.0)
    for worker in running:
        worker.stop(_STOP_LIMIT_S / len(running))
    for action in _last:
        action()


def after_workers(action: Callable[[], None]) -> None:
    """At the end of the process, when no worker runs any more, calls `action`."""
    _last.append(action)


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_running.clear)


def stack_of(frame: FrameType | None) -> str:
    """The stack as in a traceback. Blocks up to half a second: source lines may lie on a file system that hangs."""
    if frame is None:
        return "  (the thread has ended)"
    found = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_MOST_FRAMES, lookup_lines=False)
    found.reverse()
    with_lines = limited(lambda: "".join(found.format()), 0.5, None)
    return with_lines or "\n".join(f'  File "{f.filename}", line {f.lineno}, in {f.name}' for f in found)


def place_of(frame: FrameType | None) -> str:
    """The innermost line that is the user's own, such as `train.py:80 in sync`; empty where there is no frame."""
    innermost = frame
    while frame is not None and any(mark in frame.f_code.co_filename for mark in _FOREIGN):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def main_thread_place() -> str:
    """Where the main thread is."""
    return place_of(sys._current_frames().get(threading.main_thread().ident or 0))
