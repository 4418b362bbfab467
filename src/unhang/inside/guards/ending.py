"""The end: of the process groups in the order that cannot hang, of this process, and the error that the launcher is to show."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from unhang.errors import PeerFailed
from unhang.inside.guards.transport.worker import limited
from unhang.inside.guards.watching import STOPPED_S
from unhang.inside.guards.words import in_words, log, traceback_of

LAST_RESORT_S = 20.0
F = TypeVar("F", bound=Callable[..., Any])
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


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
            log("unhang", f"destroy_process_group did not return within {limit_s:.0f} s; it is left behind")
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


def record(main: F) -> F:
    """Keeps the exception that leaves `main`, in the file that torchrun reads for its summary, and raises it again.

    Works under any launcher; without one it changes nothing.

    Example:
        ```python
        import unhang

        @unhang.record
        def main(steps: int) -> int:
            return steps * 2

        print(main(21))  # 42
        ```
    """

    @functools.wraps(main)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except SystemExit as error:
            if error.code not in (0, None):
                keep_error(error)
            raise
        except Exception as error:
            keep_error(error)
            raise

    return recorded  # type: ignore[return-value]


def keep_error(error: BaseException) -> None:
    """Writes the error into the file that torchrun reads, unless one stands there. Never raises; nothing under other launchers."""
    with suppress(Exception):
        path = os.environ.get(ERROR_FILE, "")
        if not path or os.path.exists(path):
            return
        message = {
            "message": in_words(error),
            "extraInfo": {"py_callstack": traceback_of(error), "timestamp": str(_time_s(error))},
        }
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            json.dump({"message": message}, file)
        sys.stderr.flush()


def _time_s(error: BaseException) -> int:
    """When it happened, in whole seconds: the launcher names the earliest as the cause, so an echo is later than its cause.

    A rank that was stopped cannot report it itself, and dies of the launcher's signal when it goes on; then this is no echo.
    """
    now_s = int(time.time())
    if not isinstance(error, PeerFailed):
        return now_s
    was_stopped = (error.failure or {}).get("kind") == "stopped"
    return now_s - int(STOPPED_S) if was_stopped else now_s + 1
