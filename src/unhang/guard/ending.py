"""The end of the process groups: always, in the order that cannot hang, and never for longer than a limit.

And of the ranks beside this one that cannot end by themselves: one that is stopped hears of no failure and of no SIGTERM.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from unhang.guard.telling import tell

if TYPE_CHECKING:
    from unhang.guard.board import Board

T = TypeVar("T")
LAST_RESORT_S = 20.0
# So long a rank beside this one is stopped, or has ended without a word, before all are told.
STOPPED_S = 2.0
GONE_S = 1.5
_LOOK_EVERY_S = 0.5
_PAUSE_S = 3.0
_ARRIVAL_S = 60.0


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


@dataclass(frozen=True)
class Process:
    """A process of this machine; `started` tells it apart from a later one with the same number."""

    pid: int
    started: str

    def state(self) -> str:
        """As in /proc: T is stopped (by a signal, not by a debugger); empty when it has ended."""
        fields = _stat(self.pid)
        return fields[0] if fields and fields[19] == self.started and fields[0] not in "ZX" else ""

    def resume(self) -> None:
        """Lets it go on, if it is stopped. Never raises."""
        with suppress(OSError):
            if self.state() == "T":
                os.kill(self.pid, signal.SIGCONT)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; empty where there are none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _process_numbers() -> str:
    """Equal for processes that see each other under the same numbers; empty where that cannot be known."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    return ""


class Neighbours:
    """The ranks that came to this machine just before and just after this one, as /proc shows them.

    Calls `found` once when one of them has been stopped for STOPPED_S, or has ended without a word to the others for GONE_S.
    The thread asks the store only where it must, and then with a limit: a stopped rank may be its host.
    """

    def __init__(self, board: Board, found: Callable[[dict[str, Any]], None]) -> None:
        self._board, self._found = board, found
        self._others: dict[int, Process] = {}
        self._unknown: list[str] = []
        self._since: dict[int, float] = {}
        self._until = self._looked = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unhang-neighbours", daemon=True)
        if limited(self._come, 5.0, False):
            self._thread.start()

    def _come(self) -> bool:
        here, mine = _process_numbers(), _stat(os.getpid())
        if not here or not mine:
            return False
        number = self._board.count(f"on/{here}", 1)
        self._board.put(f"on/{here}/{number}", [self._board.rank, os.getpid(), mine[19]])
        self._unknown = [f"on/{here}/{other}" for other in (number - 1, number + 1) if other > 0]
        self._until = time.monotonic() + _ARRIVAL_S
        return True

    def meet(self) -> None:
        """All ranks have come: finds the neighbours, while the store answers for sure. Blocks for less than six seconds."""
        limited(self._still_unknown, 5.0, None)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            failure = self.look(time.monotonic())
            if failure is not None:
                self._found(failure)
                return
            if self._unknown:
                # A store that does not answer is not asked again.
                self._unknown = limited(self._still_unknown, 2.0, [])

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
            state = process.state()
            if state not in ("", "T"):
                self._since.pop(rank, None)
            elif now - self._since.setdefault(rank, now) >= (STOPPED_S if state else GONE_S):
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
        self._stopped.set()


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
