"""The end of the process groups: always, in the order that cannot hang, and never for longer than a limit."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from unhang.guard.telling import tell

T = TypeVar("T")
LAST_RESORT_S = 20.0


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


def release_wrapped_models() -> int:
    """Takes the groups from all DDP modules: those would keep the connections open, and may wait for ever when they go last.

    Returns how many there were. Their modules keep parameters and buffers, and can be saved; they cannot train any more.
    """
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is None:
        return 0
    # Not isinstance: it asks objects for their __class__, and some answer with a warning or an import.
    found = [o for o in gc.get_objects() if issubclass(type(o), module.DistributedDataParallel)]
    for wrapped in found:
        for name in ("reducer", "logger", "process_group"):
            with suppress(Exception):
                wrapped.__dict__[name] = None
    return len(found)


def destroy(limit_s: float) -> bool:
    """Destroys all process groups; returns whether they are gone within the limit. Blocks up to `limit_s`.

    Should the interpreter itself stand still in it (a thread of gloo waiting for the lock that this one holds), the process
    is ended after LAST_RESORT_S more, with a stack on stderr. Never raises.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return True
    gone = threading.Event()

    def work() -> None:
        with suppress(Exception):
            dist.destroy_process_group()
        gone.set()

    _end_process_after(limit_s + LAST_RESORT_S)
    try:
        for prepare in (release_wrapped_models, gc.collect):
            with suppress(Exception):
                prepare()
        try:
            threading.Thread(target=work, name="unhang-destroy", daemon=True).start()
        except RuntimeError:  # no more threads: then without a limit of our own
            work()
        if not gone.wait(limit_s):
            tell("unhang", f"destroy_process_group did not come back within {limit_s:.0f} s; it is left behind")
            # What is left behind may keep the interpreter from ending as well.
            atexit.register(_end_process_after, LAST_RESORT_S)
        return gone.is_set()
    finally:
        with suppress(Exception):
            faulthandler.cancel_dump_traceback_later()


def _end_process_after(limit_s: float) -> None:
    """Ends the process then, whoever holds the interpreter, unless this is taken back."""
    try:
        faulthandler.dump_traceback_later(limit_s, exit=True)
    except Exception:  # noqa: BLE001 - stderr is closed, or is no file
        with suppress(Exception):
            faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or 2)


def abort_nccl() -> None:
    """Lets a main thread that waits in NCCL come back with an error; other backends have nothing of the kind."""
    from torch.distributed import distributed_c10d as c10d

    abort = getattr(c10d, "_abort_process_group", None)
    with suppress(Exception):
        if abort is not None and c10d.is_nccl_available() and c10d.is_initialized() and "nccl" in c10d.get_backend():
            abort()


def leave_now(code: int) -> None:
    """Ends this process at once, and its children as Python does at an end: those that multiprocessing calls daemons."""
    multiprocessing = sys.modules.get("multiprocessing")
    with suppress(Exception):
        for child in multiprocessing.active_children() if multiprocessing is not None else ():
            if child.daemon:
                child.terminate()
    for stream in (sys.stdout, sys.stderr):
        # A stream may be locked by the very thread that stands still.
        limited(stream.flush, 0.5, None)
    os._exit(code)


class _WorkersEnd:
    """Has each daemon that multiprocessing forks here, such as a loader's worker, get SIGTERM when this process ends.

    Python does so only at an end of its own. After a SIGKILL a loader's worker lives on for five seconds, and holds what it
    has inherited: the connections of gloo, so that no peer notices, and the pipe by which the parent of the ranks waits.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident

    def in_child(self) -> None:
        """Runs in the child. Never raises."""
        with suppress(Exception):
            # The signal comes when the thread that forked ends; where that is not the main one, the process may live on.
            is_of_main = threading.get_ident() == self._main
            if is_of_main and sys.modules["multiprocessing"].current_process().daemon:
                sys.modules["torch"].multiprocessing._prctl_pr_set_pdeathsig(signal.SIGTERM)


_workers_end: list[_WorkersEnd] = []


def end_workers_with_this_process() -> None:
    """From now on; may be called again. Never raises."""
    with suppress(Exception):
        from multiprocessing import util

        if not _workers_end:
            _workers_end.append(_WorkersEnd())
            util.register_after_fork(_workers_end[0], _WorkersEnd.in_child)
