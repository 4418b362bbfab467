"""Who is still there, and where: asked when a rank waits in vain, so that the one it waits for is named and not itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from unhang.guard.board import NEWS, Board

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
        step, frames = error.__traceback__, []
        while step is not None:
            frames.append((step.tb_frame.f_code, step.tb_lineno))
            step = step.tb_next
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


def call(board: Board, limit_s: float | None = None) -> Roll:
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
    bindings = sys.modules.get("torch._C._distributed_c10d")
    ask = getattr(bindings, "_dump_fr_trace_json", None) or getattr(bindings, "_dump_nccl_trace_json", None)
    with suppress(Exception):
        status = json.loads(ask(includeCollectives=False))["pg_status"]["0"] if ask is not None else {}
        return int(status["last_enqueued_collective"]), int(status["last_completed_collective"])
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
        named = ", ".join(ranks[:_MOST_PLACES]) + (f" and {len(ranks) - _MOST_PLACES} more" if len(ranks) > 8 else "")
        lines.append(f"  rank {named}: {place}")
    return "\n".join(lines)
