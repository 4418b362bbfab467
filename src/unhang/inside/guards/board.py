"""A notice board that all ranks of a job read: what each says of itself, who failed first, and, if one asks, who is still there.

It lies in the store that the ranks met in, over a connection of its own: the default one is locked while another thread
waits on it. The question who is still there is asked when a rank waits in vain, so that the one it waits for is named.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from traceback import walk_tb
from types import MappingProxyType
from typing import Any, NamedTuple

from unhang.errors import PeerFailed, RanksDiffer
from unhang.inside.guards.words import shortened, some_of
from unhang.inside.recorder import flight

FAILED = "failed"
# There is something to read: one question per look as long as nothing has happened.
NEWS = "news"
MOST_TEXT = 8000
POLL_S = 0.4
_RANKS_PER_POLL_S = 1024
_PREFIX = "unhang"
_ANSWER_LIMIT_S = 5.0
ANSWER_S = 1.5
_MOST_PLACES = 8
_LIBRARY = (
    f"{os.sep}torch{os.sep}",
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    f"{os.sep}contextlib.py",
    f"{os.sep}threading.py",
)
# Innermost frames in which a thread waits for a collective of gloo.
_WAITING = ("distributed/distributed_c10d.py", "autograd/graph.py", "nn/parallel/distributed.py")


def connected(store: Any) -> Any:
    """A connection of our own to the same store, with our prefix; the same object where it has no other.

    Raises:
        RuntimeError: the store cannot be reached.
    """
    import torch.distributed as dist

    if hasattr(store, "clone"):
        return dist.PrefixStore(_PREFIX, store.clone())
    inner = innermost(store)
    if isinstance(inner, dist.TCPStore):
        return dist.PrefixStore(_PREFIX, dist.TCPStore(inner.host, inner.port, None, False))
    return dist.PrefixStore(_PREFIX, inner)


def innermost(store: Any) -> Any:
    """The store below all prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


class Board:
    """The board as one rank sees it.

    No call waits for a notice for longer than five seconds. A call on a store whose host has been stopped (not ended) may stand
    still; who cannot afford that asks from a thread of its own.

    Raises:
        Exception: by every call, where the store is gone, or a notice is not there that is to be got.
    """

    def __init__(self, store: Any, rank: int, world_size: int, run: str = "0") -> None:
        """`run` keeps the notices of restarts apart."""
        self.rank, self.world_size = rank, world_size
        self.poll_s = min(max(POLL_S, world_size / _RANKS_PER_POLL_S), 2.0)
        self.keeps_alive: Any = None
        self._store, self._run = store, run
        self._has_seen = False
        inner = innermost(store)
        self.host, self.port = str(getattr(inner, "host", "")), int(getattr(inner, "port", 0) or 0)
        # Only on a connection of our own: a file or a store in memory is the job's, and so is its timeout.
        if self.port:
            with suppress(Exception):
                store.set_timeout(timedelta(seconds=_ANSWER_LIMIT_S))

    def _key(self, name: str) -> str:
        return f"{self._run}/{name}"

    def put(self, name: str, value: object) -> None:
        """Writes a notice; what JSON does not know is written as text."""
        self._store.set(self._key(name), json.dumps(value, default=str))

    def has(self, *names: str) -> bool:
        """Whether all of these notices are there; does not wait."""
        return bool(self._store.check([self._key(name) for name in names]))

    def get(self, name: str) -> Any:
        """A notice that is there."""
        return json.loads(self._store.get(self._key(name)))

    def get_all(self, names: Sequence[str]) -> list[Any]:
        """Notices that are all there, in one question where the store can."""
        if self.port and self._store.has_extended_api():
            return [json.loads(text) for text in self._store.multi_get([self._key(name) for name in names])]
        return [self.get(name) for name in names]

    def count(self, name: str, more: int = 0) -> int:
        """Adds to a counter of the whole job, which begins at 0, and returns it."""
        return int(self._store.add(self._key(name), more))

    def put_first(self, name: str, value: object) -> Any:
        """Writes a notice unless it is there; returns the one that stands."""
        return json.loads(self._store.compare_set(self._key(name), "", json.dumps(value, default=str)))

    def wait_for(self, names: Sequence[str], limit_s: float) -> list[str]:
        """Those that have not come when the limit is over, or when somebody failed. Blocks up to `limit_s`."""
        until = time.monotonic() + limit_s
        pause_s = 0.005
        while not self.has(*names):
            if time.monotonic() > until or self.has(FAILED):
                return [name for name in names if not self.has(name)]
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, self.poll_s)
        return []

    def announce(self, failure: dict[str, Any]) -> dict[str, Any]:
        """Puts up a failure, unless another rank was first; returns the one that stands.

        `rank`: who failed; `what`: why, in a line; `text`: its traceback; `by`: who says so, if it is another rank.
        """
        mine = {"by": self.rank, **failure, "text": shortened(str(failure.get("text", "")), MOST_TEXT)}
        self.put(NEWS, True)
        standing: dict[str, Any] = self.put_first(FAILED, mine)
        self.see()
        return standing

    def failure(self) -> dict[str, Any] | None:
        """The first failure, if there is one."""
        return self.get(FAILED) if self.has(FAILED) else None

    def see(self) -> None:
        """Counts this rank, once, among those that know of the failure."""
        if not self._has_seen:
            self._has_seen = True
            self.count("seen", 1)

    def store_is_gone(self) -> bool:
        """Whether nobody listens where the store was. Blocks up to a second."""
        if not self.port:
            return False
        try:
            socket.create_connection((self.host, self.port), 1.0).close()
        except OSError:
            return True
        return False


class Roll(NamedTuple):
    """The answers of the ranks that answered, and the ranks that did not."""

    answers: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
    silent: tuple[int, ...] = ()


class Presence:
    """This rank's part: answers when another calls."""

    def __init__(self, board: Board | None, thread_id: int) -> None:
        """`thread_id`: the thread that trains."""
        self._board, self._thread_id, self._answered = board, thread_id, 0
        self._error_place = ""

    def came_from(self, error: BaseException) -> None:
        """The training was left by this exception: from now on its line is where this rank is."""
        frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
        theirs = [(code, line) for code, line in frames if not any(part in code.co_filename for part in _LIBRARY)]
        if theirs:
            code, line = theirs[-1]
            self._error_place = f"{code.co_filename}:{line} in {code.co_name} (left it by {type(error).__name__})"

    def answer(self) -> None:
        """Answers the last call, if it has not yet. Called by the watcher."""
        if self._board is None or not self._board.has("roll"):
            return
        number = self._board.count("roll")
        if number > self._answered:
            self._answered = number
            state = state_of(self._thread_id)
            state["at"] = self._error_place or state["at"]
            self._board.put(f"here/{number}/{self._board.rank}", state)
            self._board.count(f"here/{number}", 1)


def call_roll(board: Board, limit_s: float | None = None) -> Roll:
    """Calls all ranks. Blocks up to `limit_s` (ANSWER_S and three looks of the others), and for as long as the store takes.

    Raises:
        Exception: the store is gone.
    """
    limit_s = ANSWER_S + 3 * board.poll_s if limit_s is None else limit_s
    board.put(NEWS, True)
    number = board.count("roll", 1)
    until = time.monotonic() + limit_s
    while board.count(f"here/{number}") < board.world_size and time.monotonic() < until:
        time.sleep(0.05)
    ranks = range(board.world_size)
    silent = []
    if not board.has(*(f"here/{number}/{r}" for r in ranks)):
        silent = [r for r in ranks if not board.has(f"here/{number}/{r}")]
    there = [r for r in ranks if r not in set(silent)]
    found = board.get_all([f"here/{number}/{r}" for r in there]) if there else []
    return Roll(dict(zip(there, found, strict=True)), tuple(r for r in silent if r != board.rank))


def state_of(thread_id: int) -> dict[str, Any]:
    """Where a thread of this process is: its line, whether it waits for a collective, and how many this rank has made."""
    frame = sys._current_frames().get(thread_id)
    innermost = frame
    token = "" if frame is None else f"{id(frame)}:{frame.f_lasti}"
    while frame is not None and any(part in frame.f_code.co_filename for part in _LIBRARY):
        frame = frame.f_back
    if frame is None:
        frame = innermost
    made, completed = collectives_made()
    waits = innermost is not None and innermost.f_code.co_filename.endswith(_WAITING)
    return {
        "at": "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}",
        "token": token,
        "waits": waits,
        "made": made,
        "completed": completed,
    }


def collectives_made() -> tuple[int, int]:
    """Collectives of the default group that this rank has issued, and those that the recorder knows to be complete; -1: unknown.

    gloo's number of complete ones may lag behind by one or more; NCCL's does not.
    """
    with suppress(Exception):
        found = [
            dump["pg_status"]["0"]
            for dump in flight.as_json(includeCollectives=False)
            if "0" in dump.get("pg_status", {})
        ]
        made, completed = ([int(s[f"last_{key}_collective"]) for s in found] for key in ("enqueued", "completed"))
        return (sum(made), sum(completed)) if found else (-1, -1)
    return -1, -1


def waits_in_vain(before: Roll, now: Roll, mine: Mapping[str, Any], backend: str) -> int | None:
    """A rank that will wait for ever for this one, which makes no further collective; None where none is proven to.

    Proven: at both calls it stood at the same instruction, has issued more collectives of the default group than this rank,
    and waits for one.
    """
    for rank, answer in now.answers.items():
        earlier = before.answers.get(rank)
        if earlier is None or not answer["token"] or answer["token"] != earlier["token"]:
            continue
        pending = "nccl" in backend and answer["completed"] < answer["made"]
        is_ahead = 0 <= mine["made"] < answer["made"] == earlier["made"]
        if is_ahead and (answer["waits"] or pending):
            return rank
    return None


def places(roll: Roll) -> str:
    """Where the ranks that answered are, one line per place."""
    found = Counter(str(answer["at"]) for answer in roll.answers.values())
    lines = []
    for place, _ in found.most_common(_MOST_PLACES):
        ranks = [str(rank) for rank, answer in roll.answers.items() if answer["at"] == place]
        lines.append(f"  rank {some_of(ranks, _MOST_PLACES)}: {place}")
    return "\n".join(lines)


def one_line(failure: Mapping[str, Any]) -> str:
    """A failure as one line for people."""
    what = " ".join(str(failure["what"]).split())
    if failure["rank"] is None or failure.get("kind") == "differ":
        return what
    if failure.get("kind") == "interrupted":
        return f"rank {failure['rank']} was interrupted ({what})"
    return f"rank {failure['rank']} failed: {what}"


def in_full(failure: Mapping[str, Any]) -> str:
    """A failure in words, with its traceback."""
    text = str(failure.get("text", ""))
    return one_line(failure) + (f"\n{text}" if text else "")


def peer_failed(failure: Mapping[str, Any]) -> PeerFailed:
    """The error of a rank that hears of another's failure, and, should it leave `process_group`, names that one."""
    error = PeerFailed(in_full(failure))
    error.failure = failure
    return error


def as_error(failure: Mapping[str, Any]) -> PeerFailed | RanksDiffer:
    """The error for a failure as it stands on the board."""
    return RanksDiffer(in_full(failure)) if failure.get("kind") == "differ" else peer_failed(failure)
