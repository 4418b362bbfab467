"""What the other ranks say about their sections: asked over the notice board when one of them overruns, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from unhang.inside.guards.board import NEWS, Board
from unhang.inside.guards.job import Job, live_job
from unhang.inside.guards.words import name_ranks
from unhang.inside.guards.worker import Worker, polled

POLL_S = 0.4
# Between two looks whether the watcher of `process_group` still answers for us.
_REST_S = 5.0
# Together with the poll of the others: their states are here, or they do not come.
ANSWER_LIMIT_S = 1.5
MOST_QUESTIONS = 40
_RANKS_PER_POLL = 1000
_MOST_GROUPS = 12

State = dict[str, Any]


class SectionQuestions:
    """Answers the questions of other ranks from a thread of its own, and asks.

    A question is a number: every rank then puts up the state of all its sections, so that two ranks that ask at the
    same time are content with one answer. The rank whose notice stands collects the answers and puts up a summary;
    the others read that: a few requests per rank, not one for every pair.
    """

    def __init__(self, state: Callable[[], State]) -> None:
        """`state`: the sections of this rank, as JSON."""
        self._state = state
        self._next = 0
        self._board: Board | None = None
        self._dead: Board | None = None
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Starts to answer."""
        if self._worker is None:
            self._worker = Worker("unhang-section-answers", self._turn)

    def stop(self) -> None:
        """Ends the thread; blocks for less than a second."""
        if self._worker is not None:
            self._worker.stop()

    def _job_with_board(self) -> tuple[Job, Board] | None:
        job = live_job()
        if job is None or job.board is None or job.world_size < 2 or job.board is self._dead:
            return None
        if job.board is not self._board:
            self._board, self._next = job.board, 0
        return job, job.board

    def _turn(self) -> float:
        job = live_job()
        return _REST_S if job is not None and job.is_answered else self.answer()

    def answer(self) -> float:
        """Puts up our state for every new question; returns the seconds until the next look.

        Called by a thread of its own once this rank has used a section, and by the watcher of `process_group` in any case.
        """
        with self._lock:
            return self._answer_new()

    def _answer_new(self) -> float:
        found = self._job_with_board()
        if found is None:
            return POLL_S
        job, board = found
        try:
            while self._next < MOST_QUESTIONS and board.has(_key(self._next, "question")):
                board.put(_key(self._next, f"answer/{job.rank}"), self._state())
                self._next += 1
        except Exception:  # noqa: BLE001 - the store is gone: the job ends, or its host has
            self._dead = board
        return POLL_S * max(1.0, job.world_size / _RANKS_PER_POLL)

    def ask(self, name: str, number: int) -> str:
        """How the others stand in this section, in words; empty where nobody can be asked.

        Blocks up to twice ANSWER_LIMIT_S while the store answers, and for as long as the store itself blocks.

        Raises:
            Exception: the store is gone.
        """
        found = self._job_with_board()
        if found is None or self._next >= MOST_QUESTIONS:
            return ""
        job, board = found
        question = self._next
        board.put(NEWS, True)
        mine = {"rank": job.rank, "section": name, "number": number, "time": time.time()}
        notice = board.put_first(_key(question, "question"), mine)
        if notice["rank"] != job.rank and notice["section"] == name:
            if polled(lambda: board.has(_key(question, "summary")), 2 * ANSWER_LIMIT_S):
                return f"the ranks, as rank {notice['rank']} collected it: {board.get(_key(question, 'summary'))}"
            return f"rank {notice['rank']} has asked the others, and has put up no answer"
        board.put(_key(question, f"answer/{job.rank}"), self._state())
        text = summary(name, number, self._collect(board, question, job.world_size), job.world_size)
        with suppress(Exception):
            board.put(_key(question, "summary"), text)
        return "the ranks: " + text

    def _collect(self, board: Board, question: int, world_size: int) -> dict[int, State]:
        names = [_key(question, f"answer/{rank}") for rank in range(world_size)]
        have_all = polled(lambda: board.has(*names), ANSWER_LIMIT_S * max(1.0, world_size / _RANKS_PER_POLL))
        ranks = [rank for rank, name in enumerate(names) if have_all or board.has(name)]
        return dict(zip(ranks, board.get_all([names[rank] for rank in ranks]), strict=True))


def _key(question: int, what: str) -> str:
    return f"section/{question}/{what}"


def summary(name: str, number: int, states: Mapping[int, State], world_size: int) -> str:
    """Who is inside, who has left and who has not come, seen from a rank that is inside for the `number`-th time.

    A state is `{"sections": {name: [entered, left]}, "open": [[name, seconds], ...], "at": place}`.
    """
    inside: list[int] = []
    groups: dict[str, list[int]] = {}
    longest = 0.0
    for rank, state in sorted(states.items()):
        entered, left = state["sections"].get(name, (0, 0))
        seconds = [s for n, s in state["open"] if n == name]
        if seconds:
            inside.append(rank)
            longest = max(longest, *seconds)
        elif entered >= number:
            groups.setdefault(f"left it ({_times(left)} so far){_elsewhere(state)}", []).append(rank)
        else:
            so_far = "never" if not entered else f"only {_times(entered)}"
            groups.setdefault(f"entered it {so_far}, not {_times(number)}{_elsewhere(state)}", []).append(rank)
    silent = [rank for rank in range(world_size) if rank not in states]
    parts = [f"inside (for up to {longest:.0f} s): {name_ranks(inside)}"] if inside else []
    parts += [
        f"{what}: {name_ranks(ranks)}" for what, ranks in sorted(groups.items(), key=lambda g: g[1])[:_MOST_GROUPS]
    ]
    if len(groups) > _MOST_GROUPS:
        parts.append(f"{len(groups) - _MOST_GROUPS} more kinds")
    if silent:
        parts.append(f"no answer (ended, standing still as a whole, or no section used so far): {name_ranks(silent)}")
    return "; ".join(parts)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _elsewhere(state: State) -> str:
    innermost = f", now in {state['open'][-1][0]!r}" if state["open"] else ""
    place = f", at {state['at']}" if state.get("at") else ""
    return innermost + place
