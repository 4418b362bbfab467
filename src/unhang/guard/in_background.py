"""Work beside the training: daemon threads that end with the process, waits that have a limit, and what is asked of frames."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from weakref import WeakSet

from unhang.guard.bell import Bell
from unhang.guard.ending import limited
from unhang.guard.job import Job, current
from unhang.guard.telling import tell

_AFTER_ERROR_S = 1.0
_STOP_LIMIT_S = 1.0
_MOST_FRAMES = 17
_FOREIGN = ("site-packages", "dist-packages", "/lib/python3", "<frozen", os.path.dirname(os.path.dirname(__file__)))
_running: WeakSet[Turns] = WeakSet()


class Turns:
    """A daemon thread that calls `turn` again and again.

    `turn` returns the seconds until its next call, or None to sleep until `wake`. An error in it is told once. Where the
    process may start no more threads, that is told, and nothing is called.
    The threads are ended before the interpreter is taken apart: one that comes back from C++ code then ends the process
    with SIGABRT.
    """

    def __init__(self, name: str, turn: Callable[[], float | None]) -> None:
        self._turn = turn
        self._name = name
        self._bell = Bell()
        self._is_stopped = False
        self._has_told = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            if "shutdown" not in str(error):  # an interpreter that ends starts none any more
                tell("unhang", f"{name}: {error}; the training goes on without it")
            self._is_stopped = True
        else:
            _running.add(self)

    def wake(self) -> None:
        """Has the next turn begin now; never waits."""
        self._bell.ring()

    def stop(self, limit_s: float = _STOP_LIMIT_S) -> None:
        """Ends the thread after the turn under way. Blocks up to `limit_s`."""
        self._is_stopped = True
        self._bell.ring()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._is_stopped:
            try:
                pause_s = self._turn()
            except Exception as error:  # noqa: BLE001 - nothing of ours may end in the training's output as a traceback
                pause_s = _AFTER_ERROR_S
                if not self._has_told:
                    self._has_told = True
                    tell("unhang", f"{self._name}: {type(error).__name__}: {error}")
            if not self._is_stopped:
                self._bell.wait(pause_s)  # whoever rang during the turn has us come again


def _stop_all() -> None:
    running = list(_running)
    for turns in running:
        turns.stop(0.0)
    for turns in running:
        turns.stop(_STOP_LIMIT_S / len(running))


atexit.register(_stop_all)
os.register_at_fork(after_in_child=_running.clear)


def live_job() -> Job | None:
    """The job while its process groups stand; None before and after."""
    dist = sys.modules.get("torch.distributed")
    try:
        return current() if dist is not None and dist.is_initialized() else None
    except Exception:  # noqa: BLE001 - they are being made or destroyed at this moment
        return None


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
