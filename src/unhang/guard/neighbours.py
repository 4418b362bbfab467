"""The ranks beside this one on the same machine: one that is stopped hears of no failure and of no SIGTERM, nor can it tell."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from unhang.guard.bell import Bell
from unhang.guard.ending import limited

if TYPE_CHECKING:
    from unhang.guard.board import Board

# So long a rank beside this one is stopped, or has ended without a word, before all are told.
STOPPED_S = 3.5
GONE_S = 1.5
_LOOK_EVERY_S = 1.0
_PAUSE_S = 3.0
_ARRIVAL_S = 60.0


class Process(NamedTuple):
    """A process of this machine; `started` tells it apart from a later one with the same number."""

    pid: int
    started: str

    def state(self) -> str:
        """As in /proc: T is stopped (by a signal, not by a debugger); empty when it has ended."""
        return self.seen()[0]

    def seen(self) -> tuple[str, int]:
        """Its state, and the clock ticks of CPU time that it has used; -1 when it has ended."""
        fields = process_fields(self.pid)
        if not fields or fields[19] != self.started or fields[0] in "ZX":
            return "", -1
        return fields[0], int(fields[11]) + int(fields[12])

    def resume(self) -> None:
        """Lets it go on, if it is stopped. Never raises."""
        with suppress(OSError):
            if self.state() == "T":
                os.kill(self.pid, signal.SIGCONT)


def process_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; empty where there are none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(descriptor, 4096).decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
    finally:
        os.close(descriptor)


def process_numbers() -> str:
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
        self._since: dict[int, tuple[float, int]] = {}
        self._until = self._looked = 0.0
        self._end = Bell()
        self._thread = threading.Thread(target=self._run, name="unhang-neighbours", daemon=True)
        if limited(self._come, 5.0, False):
            self._thread.start()

    def _come(self) -> bool:
        here, mine = process_numbers(), process_fields(os.getpid())
        if not here or not mine:
            return False
        number = self._board.count(f"on/{here}", 1)
        self._board.put(f"on/{here}/{number}", [self._board.rank, os.getpid(), mine[19]])
        self._unknown = [f"on/{here}/{other}" for other in (number - 1, number + 1) if other > 0]
        self._until = time.monotonic() + _ARRIVAL_S
        return True

    def meet(self) -> None:
        """All ranks have come: finds the neighbours, while the store answers for sure. Blocks for less than six seconds."""
        if limited(self._still_unknown, 5.0, None) is not None:
            self._unknown = []

    def _run(self) -> None:
        while not self._end.wait(_LOOK_EVERY_S):
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
        self._end.ring()


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
