"""What looks after the other ranks: the reader of the board, and a look at the neighbours on the same machine.

A neighbour that is stopped hears of no failure and of no SIGTERM, and can report nothing itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from unhang.inside.guards.transport.board import NEWS, Board
from unhang.inside.guards.transport.shared_memory import Process, process_fields, process_numbers
from unhang.inside.guards.transport.worker import Worker, limited

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
