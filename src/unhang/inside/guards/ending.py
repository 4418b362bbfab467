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
from unhang.inside.guards.board import NEWS, Board
from unhang.inside.guards.shared_memory import Process, process_fields, process_numbers
from unhang.inside.guards.words import in_words, log, traceback_of
from unhang.inside.guards.worker import Worker, limited
from unhang.inside.rank import with_group

# What looks after the other ranks: the reader of the board, and a look at the neighbours on the same machine.
#
# A neighbour that is stopped hears of no failure and of no SIGTERM, and can report nothing itself.

# So long a rank beside this one is stopped, or has ended without a word, before it is announced to all.
STOPPED_S = 3.5
GONE_S = 1.5
_LOOK_EVERY_S = 1.0
_PAUSE_S = 3.0
_ARRIVAL_S = 60.0
_MOST_ERRORS = 4


class Watcher:
    """Reads the board from a thread of its own: calls `act` once when somebody failed, `lost` once when the store is gone.

    `on_news` is called at every look from the first notice of any kind on.
    """

    def __init__(
        self,
        board: Board,
        act: Callable[[dict[str, Any]], None],
        lost: Callable[[], None] | None = None,
        on_news: Callable[[], None] | None = None,
    ) -> None:
        self._board, self._act, self._lost, self._on_news = board, act, lost, on_news
        self._errors, self._is_stopped = 0, False
        self._worker = Worker("unhang-board", self._turn, board.poll_s, raises=True)

    def _turn(self) -> float:
        try:
            failure = self._look()
            self._errors = 0
        except Exception:  # noqa: BLE001 - the store ends with its host; who it was is asked below
            self._errors += 1
            if self._errors < _MOST_ERRORS:
                return self._board.poll_s
            if self._lost is not None and self._board.store_is_gone() and not self._is_stopped:
                self._lost()
            return Worker.END
        if failure is None:
            return self._board.poll_s
        self._act(failure)
        return Worker.END

    def _look(self) -> dict[str, Any] | None:
        if not self._board.has(NEWS):
            return None
        if self._on_news is not None:
            self._on_news()
        failure = self._board.failure()
        if failure is not None:
            with suppress(Exception):
                self._board.see()
        return failure

    def stop(self) -> None:
        """Ends the thread; blocks for less than a second."""
        self._is_stopped = True
        self._worker.stop()


class Neighbours:
    """The ranks that came to this machine just before and just after this one, as /proc shows them.

    Calls `found` once when one of them has been stopped for STOPPED_S, or has ended without a word to the others for GONE_S.
    The thread asks the store only where it must, and then with a limit: a stopped rank may be its host.
    """

    def __init__(self, board: Board, found: Callable[[dict[str, Any]], None]) -> None:
        self._board, self._found = board, found
        self._others: dict[int, Process] = {}
        self._unknown: list[str] = []
        self._since: dict[int, tuple[float, int]] = {}
        self._until = self._looked = 0.0
        self._worker: Worker | None = None
        if limited(self._come, 5.0, False):
            self._worker = Worker("unhang-neighbours", self._turn, _LOOK_EVERY_S, raises=True)

    def _come(self) -> bool:
        here, mine = process_numbers(), process_fields(os.getpid())
        if not here or not mine:
            return False
        number = self._board.count(f"on/{here}", 1)
        self._board.put(f"on/{here}/{number}", [self._board.rank, os.getpid(), mine[19]])
        self._unknown = [f"on/{here}/{other}" for other in (number - 1, number + 1) if other > 0]
        self._until = time.monotonic() + _ARRIVAL_S
        return True

    def find(self) -> None:
        """All ranks have come: finds the neighbours, while the store answers for sure. Blocks for less than six seconds."""
        if limited(self._still_unknown, 5.0, None) is not None:
            self._unknown = []

    def _turn(self) -> float:
        failure = self.look(time.monotonic())
        if failure is not None:
            self._found(failure)
            return Worker.END
        if self._unknown:
            # A store that does not answer is not asked again.
            self._unknown = limited(self._still_unknown, 2.0, [])
        return _LOOK_EVERY_S

    def _still_unknown(self) -> list[str]:
        for name in [name for name in self._unknown if self._board.has(name)]:
            rank, pid, started = self._board.get(name)
            self._others[rank] = Process(pid, started)
            self._unknown = [other for other in self._unknown if other != name]
        return self._unknown if time.monotonic() < self._until else []

    def look(self, now: float) -> dict[str, Any] | None:
        """One look: what failed, if one of them stands for that long now. `now`: monotonic seconds."""
        if now - self._looked > _PAUSE_S:
            # This process may have stood still with the others, and they are about to go on as it does.
            self._since.clear()
        self._looked = now
        for rank, process in list(self._others.items()):
            state, ticks = process.seen()
            since, ticks_then = self._since.setdefault(rank, (now, ticks))
            if state not in ("", "T"):
                del self._since[rank]
            elif ticks != ticks_then:  # it has run in between: somebody stops and continues it again and again
                self._since[rank] = now, ticks
            elif now - since >= (STOPPED_S if state else GONE_S):
                if state:
                    return _stopped(rank, process)
                del self._others[rank]
                if not limited(lambda gone=rank: self._board.has(f"done/{gone}"), 1.0, True):  # type: ignore[misc]
                    return _gone(rank, process)
        return None

    def resume(self) -> None:
        """The job has failed: lets those go on that are stopped, to hear of it and end. Never raises."""
        for process in list(self._others.values()):
            process.resume()

    def stop(self) -> None:
        """Ends the thread; does not wait for it."""
        if self._worker is not None:
            self._worker.stop(0.0)


def _stopped(rank: int, process: Process) -> dict[str, Any]:
    what = (
        f"it was stopped by a signal (SIGSTOP, SIGTSTP; pid {process.pid}) and has not gone on for {STOPPED_S:g} s; it is "
        "continued now, only to end"
    )
    return {"rank": rank, "by": None, "what": what, "kind": "stopped"}


def _gone(rank: int, process: Process) -> dict[str, Any]:
    """Names nobody as the cause: a launcher that ends a job has all ranks end like this."""
    what = (
        f"rank {rank} (pid {process.pid}) has ended without an error of its training: it was killed, left by os._exit, or its "
        "launcher is ending the job"
    )
    return {"rank": None, "by": None, "what": what}


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
    dist = with_group()
    if dist is None:
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


_main_thread: int | None = None


def end_workers_with_this_process() -> None:
    """Has each daemon that multiprocessing forks here, such as a loader's worker, get SIGTERM when this process ends.

    Python does so only at an end of its own. After a SIGKILL a loader's worker lives on for five seconds, and holds what it
    has inherited: the connections of gloo, so that no peer notices, and the pipe by which the parent of the ranks waits.
    May be called again. Never raises.
    """
    global _main_thread
    with suppress(Exception):
        from multiprocessing import util

        if _main_thread is None:
            _main_thread = threading.main_thread().ident
            util.register_after_fork(_end_with_parent, lambda end: end())


def _end_with_parent() -> None:
    """Runs in the child. Never raises."""
    with suppress(Exception):
        # The signal comes when the thread that forked ends; where that is not the main one, the process may live on.
        if threading.get_ident() == _main_thread and sys.modules["multiprocessing"].current_process().daemon:
            sys.modules["torch"].multiprocessing._prctl_pr_set_pdeathsig(signal.SIGTERM)


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
