"""Small exchanges between all ranks, for guards: none waits for ever, and each says who did not come, or came to another place.

Two kinds. `gather` goes over the notice board: it needs no group, and serves what is asked once. `start` sends one row of
numbers, without waiting: it serves what is asked in every step. Where all ranks run on one machine, the rows go through memory
that they share, else over the guards' own group. All rows are equally long, whichever guard sends them, so that ranks at
different places find each other there: gloo ends the process where the sizes differ. Over the group the answer is the sum of
tables in which each rank fills its row: as quick as a minimum, quicker to begin than an all_gather, and it names the ranks at once.

Shapes: R rank, C column of a row.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards.board import Board, peer_failed
from unhang.inside.guards.shared_memory import SharedRow, SharedRows, agreed, process_numbers, wait_until
from unhang.inside.guards.words import name_ranks

if TYPE_CHECKING:
    from unhang.inside.guards.job import Job

# A row: which guard, which time round (epoch or call), which position in it, the rank's word, and a length.
WIDTH = 5
T = TypeVar("T")
UNKNOWN = -1
# After so long a wait, a rank leaves word on the board that it waits.
SLICE_S = 0.5
# Another rank's limit began to run at another moment: so much longer the others wait for rank 0's verdict.
_VERDICT_EXTRA_S = 5.0
_NOTICE_WAIT_S = 1.5
# A store may serve several jobs of a process, one after the other.
_uses = itertools.count()


class ConnectionLost(PeerFailed, RuntimeError):
    """The connection to another rank broke. `process_group` takes it, as any such error of gloo, for an echo of that rank's end."""


def gather(mine: Job, key: str, value: object, judge: Callable[[list[Any]], Any], limit_s: float, what: str) -> Any:
    """Every rank's value, judged by rank 0, by rank; all ranks get the same verdict. JSON can hold value and verdict.

    `key`: the same on all ranks, and another for each use; `what`: the guard, for the errors.

    Blocks: up to `limit_s` and five seconds.

    Raises:
        RanksDiffer: some ranks did not come.
        PeerFailed: another rank failed meanwhile, or the store is gone.
    """
    board = mine.board
    if board is None:
        return judge(_gathered(mine, value))
    try:
        board.put(f"{key}/{mine.rank}", value)
        if mine.rank == 0:
            board.put(f"{key}/verdict", _verdict(board, key, judge, limit_s))
        elif board.wait_for([f"{key}/verdict"], limit_s + _VERDICT_EXTRA_S):
            failure = board.failure()
            if failure is not None:
                raise peer_failed(failure)
            raise did_not_come(_absent(board, key) or [0], what, limit_s)
        answer = board.get(f"{key}/verdict")
    except RuntimeError as error:
        raise ConnectionLost(f"the store of the job cannot be reached any more, in {what}: {error}") from error
    if answer.get("failed"):
        raise peer_failed(answer["failed"])
    if answer["absent"]:
        raise did_not_come(answer["absent"], what, answer["limit_s"])
    return answer["verdict"]


def _verdict(board: Board, key: str, judge: Callable[[list[Any]], Any], limit_s: float) -> dict[str, Any]:
    names = [f"{key}/{rank}" for rank in range(board.world_size)]
    if board.wait_for(names, limit_s):
        return {"absent": _absent(board, key), "limit_s": limit_s, "failed": board.failure()}
    return {"absent": [], "verdict": judge(board.get_all(names))}


def _absent(board: Board, key: str) -> list[int]:
    return [rank for rank in range(board.world_size) if not board.has(f"{key}/{rank}")]


def did_not_come(ranks: Sequence[int], what: object, limit_s: float) -> RanksDiffer:
    """The error that names the ranks which are awaited in vain."""
    return RanksDiffer(f"{name_ranks(ranks)} did not come to {what} within {limit_s:g} s")


def alike(by_rank: Sequence[T]) -> list[tuple[T, tuple[int, ...]]]:
    """The values of the ranks, each with those that have it; the most common first."""
    owners: dict[T, list[int]] = {}
    for rank, value in enumerate(by_rank):
        owners.setdefault(value, []).append(rank)
    return sorted(((value, tuple(ranks)) for value, ranks in owners.items()), key=lambda item: (-len(item[1]), item[1]))


def _gathered(mine: Job, value: object) -> list[Any]:
    """Where there is no board: over the group, whose timeout is the limit."""
    dist: Any = sys.modules["torch.distributed"]
    values: list[Any] = [None] * mine.world_size
    try:
        dist.all_gather_object(values, value, group=mine.side_group())
    except RuntimeError as error:
        raise ConnectionLost(f"the exchange with the other ranks failed: {error}") from error
    return values


def number_of(mine: Job, kind: str, name: str) -> int:
    """A number that stands for a guard in a row. The board learns its words, for ranks that do not know this guard."""
    number = int.from_bytes(hashlib.sha256(f"{kind} {name}".encode()).digest()[:7], "big")
    known = mine.guards.setdefault("exchange words", {})
    if number not in known:
        known[number] = [kind, name]
        if mine.board is not None:
            with suppress(Exception):
                mine.board.put(f"guard/{number}", known[number])
    return number


class _Memory:
    """A table of all ranks' rows, as plain memory and as the tensor that lies in it; used again, since tensors are slow to make."""

    def __init__(self, world_size: int) -> None:
        torch: Any = sys.modules["torch"]
        self.world_size = world_size
        self.empty = array("q", bytes(8 * WIDTH * world_size))
        self.rows_RC = self.empty[:]
        self.tensors = [torch.frombuffer(self.rows_RC, dtype=torch.int64)]
        self.row_C = array("q", bytes(8 * WIDTH))

    def write(self, rank: int, row: Sequence[int]) -> None:
        """Only this rank's row; the others' are zero, so that the sum over the ranks is the table."""
        self.row_C = array("q", row)
        self.rows_RC[:] = self.empty
        self.rows_RC[rank * WIDTH : (rank + 1) * WIDTH] = self.row_C


class Exchange:
    """One exchange under way, begun by `start`; this one goes over the group."""

    def __init__(self, mine: Job, memory: _Memory, work: Any, number: int) -> None:
        self._job, self._memory, self._work, self._number = mine, memory, work, number

    def wait(self, limit_s: float, what: object) -> None:
        """Waits until every rank's row is here. Blocks up to `limit_s`, and two seconds if somebody failed.

        The text of `what` names the guard in errors, and is not asked for otherwise.

        Raises:
            RanksDiffer: some ranks did not come within the limit.
            PeerFailed: another rank failed, or the connection to it is lost.
        """
        if self._is_here(0.0, what):
            return
        until = time.monotonic() + limit_s
        while not self._is_here(min(SLICE_S, max(until - time.monotonic(), 0.001)), what):
            left_s = until - time.monotonic()
            self._report_waiting()
            if left_s <= 0:
                raise self._late(limit_s, what)

    def _is_here(self, limit_s: float, what: object) -> bool:
        if not limit_s and not self._work.is_completed():
            return False
        try:
            try:
                self._work.wait(timedelta(seconds=limit_s or 0.001))
            except RuntimeError:
                if not self._work.is_completed():
                    return False
                self._work.wait()
        except RuntimeError as error:
            if "timed out" in str(error).lower():  # the group's own limit
                raise self._late(self._job.timeout_s, what) from error
            raise self._lost(what, error) from error
        return True

    def is_alike(self) -> bool:
        """Whether all ranks sent what this one sent. After `wait`."""
        memory = self._memory
        return memory.rows_RC.tobytes() == memory.row_C.tobytes() * memory.world_size

    def rows(self) -> list[list[int]]:
        """All rows, by rank. After `wait`."""
        flat = self._memory.rows_RC.tolist()
        return [flat[i : i + WIDTH] for i in range(0, len(flat), WIDTH)]

    def free(self) -> None:
        """Gives the memory to a later exchange. After `wait`; the rows are gone then."""
        self._job.guards["exchange memory"].append(self._memory)

    def places(self) -> str:
        """In words, where the ranks are, if not all at the same place; else empty. After `wait`."""
        at: dict[tuple[int, ...], list[int]] = {}
        for rank, row in enumerate(self.rows()):
            at.setdefault(tuple(row[:3]), []).append(rank)
        if len(at) == 1:
            return ""
        ordered = sorted(at.items(), key=lambda item: -len(item[1]))
        parts = [f"{name_ranks(ranks)} at {self._place(*place)}" for place, ranks in ordered]
        return f"the ranks are not at the same place: {'; '.join(parts)}"

    def _place(self, guard: int, turn: int, position: int) -> str:
        kind, name = self._words(guard)
        if kind == "epoch":
            return f"batch {position + 1} of epoch {turn} of {name}"
        return f"call {turn} of {name}"

    def _words(self, guard: int) -> list[str]:
        words: list[str] | None = self._job.guards.get("exchange words", {}).get(guard)
        if words is None and self._job.board is not None:
            with suppress(Exception):
                words = self._job.board.get(f"guard/{guard}")
        return words or ["call", "another guard"]

    def _report_waiting(self) -> None:
        """Writes that this rank waits; ends the wait if somebody failed."""
        board = self._job.board
        if board is None:
            return
        failure = None
        with suppress(Exception):
            board.put(f"waits/{self._job.rank}", self._number)
            failure = board.failure()
        if failure is not None and failure["rank"] != self._job.rank:
            raise peer_failed(failure)

    def _late(self, limit_s: float, what: object) -> RanksDiffer:
        board, absent = self._job.board, []
        if board is not None:
            with suppress(Exception):
                absent = [r for r in range(board.world_size) if not self._has_come(board, r)]
        if absent:
            return did_not_come(absent, what, limit_s)
        return RanksDiffer(f"not all ranks came to {what} within {limit_s:g} s")

    def _has_come(self, board: Board, rank: int) -> bool:
        name = f"waits/{rank}"
        return board.has(name) and board.get(name) >= self._number

    def _lost(self, what: object, error: Exception) -> PeerFailed:
        """The error where the connection broke: with the reason, if the rank that broke it could still give one."""
        board, until = self._job.board, time.monotonic() + _NOTICE_WAIT_S
        while board is not None and time.monotonic() < until:
            try:
                failure = board.failure()
            except Exception:  # noqa: BLE001 - the store went with the rank that hosted it
                break
            if failure is not None and failure["rank"] != self._job.rank:
                return peer_failed(failure)
            time.sleep(0.05)
        return ConnectionLost(f"the connection to another rank is lost, in {what}: {error}")


class SharedExchange(Exchange):
    """One that goes through memory."""

    def __init__(self, mine: Job, row: SharedRow) -> None:
        self._job, self._row, self._number = mine, row, row.number

    def wait(self, limit_s: float, what: object) -> None:
        """As over a group."""
        if not self._row.is_here():
            super().wait(limit_s, what)

    def _is_here(self, limit_s: float, what: object) -> bool:
        row = self._row
        return row.is_here() or (limit_s > 0 and wait_until(row.is_here, lambda: self._check(what), limit_s))

    def _check(self, what: object) -> None:
        """Ends the wait where a rank that has not come will not."""
        if gone := self._row.gone():
            raise self._lost(what, RuntimeError(f"Connection closed by peer: {name_ranks(gone)} left or ended"))

    def is_alike(self) -> bool:
        """As of a group."""
        return self._row.is_alike

    def rows(self) -> list[list[int]]:
        """As of a group."""
        return self._row.rows()

    def free(self) -> None:
        """Does nothing: the memory is free when all ranks have read it."""

    def _late(self, limit_s: float, what: object) -> RanksDiffer:
        return did_not_come(self._row.absent(), what, limit_s)


def start(mine: Job, row: Sequence[int], limit_s: float, what: object) -> Exchange:
    """Sends this rank's row to all others, and does not wait for theirs: about 40 us over a group, 5 through memory.

    Blocks: at the first use in a job, up to `limit_s`, until all ranks have come to agree on the way.

    Raises:
        RanksDiffer: at the first use, some ranks did not come.
        PeerFailed: another rank failed, or the group is gone.
    """
    shared = mine.shared
    if shared is None and mine.side is None:
        _choose_way(mine, limit_s, str(what))
        shared = mine.shared
    if shared is not None:
        if shared.begun >= shared.room_until:
            _make_room(shared, limit_s, what)
        return SharedExchange(mine, shared.begin(row))
    number = mine.turn("exchanges")
    unused = mine.guards.setdefault("exchange memory", [])
    memory = unused.pop() if unused else _Memory(mine.world_size)
    memory.write(mine.rank, row)
    try:
        work = mine.side_backend.allreduce(memory.tensors)
    except RuntimeError as error:
        raise ConnectionLost(f"the exchange with the other ranks failed, in {what}: {error}") from error
    return Exchange(mine, memory, work, number)


def _make_room(shared: SharedRows, limit_s: float, what: object) -> None:
    """Waits, where need be, until the others have read what was in the next places."""

    def check() -> None:
        if gone := [rank for rank in shared.slow() if shared.is_gone(rank)]:
            raise ConnectionLost(f"Connection closed by peer: {name_ranks(gone)} left or ended, in {what}")

    if not wait_until(shared.has_room, check, limit_s):
        raise did_not_come(shared.slow(), what, limit_s)


def _choose_way(mine: Job, limit_s: float, what: str) -> None:
    """Shares memory where all ranks can; else makes the group. All ranks call it."""
    turn = next(_uses)
    mine.shared = shared_by_all(mine, f"shared rows/{turn}", limit_s, what)
    if mine.shared is not None:
        return
    if mine.board is not None:
        gather(mine, f"side group/{turn}", True, lambda values: None, limit_s, what)
    try:
        mine.side_group()
    except RuntimeError as error:
        raise ConnectionLost(f"the exchange with the other ranks failed, in {what}: {error}") from error


def shared_by_all(mine: Job, key: str, limit_s: float, what: str) -> SharedRows | None:
    """Memory of all ranks, where they run on one machine and can open it. All call it; blocks and raises as `gather`."""
    if mine.board is None:
        return None

    def ask(name: str, value: object, judge: Callable[[list[Any]], Any]) -> Any:
        return gather(mine, f"{key}/{name}", value, judge, limit_s, what)

    return agreed(ask, process_numbers(), mine.rank, mine.world_size)
