"""The area `links`: which ranks, or links between two of them, are bad. Rank 0 plans rounds of tests; every rank takes part."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from unhang.check.areas import Context
from unhang.check.children import Worker, worker_command
from unhang.check.devices import backend_and_device
from unhang.check.links.evidence import Answer, Group, Verdict, answers_from_times
from unhang.check.links.search import Search
from unhang.model import Reading, Unavailable

SCOPE = "rank"
LIMIT_S = 1.0
_START_LIMIT_S, _GRACE_S, _POLL_S = 60.0, 5.0, 0.2
_MOST_ROUNDS, _MOST_TESTS_SHOWN = 60, 6

Said = Mapping[str, Any] | None
"""What a rank says of its test (`state`, `seconds`, `reason`); None where it says nothing."""


def probe(context: Context) -> Iterator[Reading | Unavailable]:
    """Nothing can be said of links by one process."""
    if context.participants.is_alone:
        yield Unavailable("links", "one process; --ranks starts some on this machine, torchrun or srun on all nodes")


def probe_together(context: Context) -> Iterator[Reading | Unavailable]:
    """The search."""
    if not context.participants.is_alone:
        yield from search_links(context, *backend_and_device(context, "links"))


def search_links(context: Context, backend: str, device: str) -> Iterator[Reading | Unavailable]:
    """Rounds of tests until it is known which ranks or links are bad. All present ranks call it; rank 0 yields the readings.

    Blocks: up to the case limit for each round, of which there are seldom more than ten, and the start of the processes.
    """
    participants, me, limit_s = context.participants, context.member, context.options.case_limit_s
    ranks = participants.present
    search = Search(len(ranks), max_rounds=_MOST_ROUNDS) if me.rank == 0 else None
    reasons: dict[int, str] = {}
    tester = TestProcess({"rank": me.rank, "backend": backend, "device": device, "store": f"{me.address}:{me.port}"})
    try:
        for turn in range(_MOST_ROUNDS + 1):
            planned = [[ranks[i] for i in group] for group in search.next_round()] if search else None
            groups = participants.share(f"links/{turn}/plan", planned, 2 * _START_LIMIT_S + limit_s)
            if not groups:
                break
            context.on_progress(f"testing links: round {turn + 1}, {len(groups)} groups")
            # All start together: else who waits for another's process to start would call the group hung.
            participants.exchange(f"links/{turn}/ready", tester.is_ready(), _START_LIMIT_S + _GRACE_S)
            mine = next((group for group in groups if me.rank in group), None)
            prefix = f"unhang-check/{me.run_id}/links/{turn}"
            own = tester.test(turn, mine, f"{prefix}/{mine[0]}", limit_s) if mine else None
            said = participants.collect(f"links/{turn}/said", own, _START_LIMIT_S + 2 * limit_s + _GRACE_S)
            if search:
                reasons |= {rank: answer["reason"] for rank, answer in said.items() if answer and answer["reason"]}
                gone = {*participants.absent, *_stuck(groups, said)}
                search.record(_answers(groups, said), [i for i, rank in enumerate(ranks) if rank in gone])
    finally:
        tester.end()
    if search:
        yield from _readings(search.verdict, ranks, reasons)


def _answers(groups: Sequence[Sequence[int]], said: Mapping[int, Said]) -> tuple[Answer, ...]:
    """A group is bad if a member got something wrong, or if it took much longer than its peers; hung if a member said nothing."""
    of_groups = [[said.get(rank) for rank in group] for group in groups]
    times = [[answer["seconds"] for answer in answers if answer] for answers in of_groups]
    both = zip(groups, times, strict=True)
    slowest = [max(found) if len(found) == len(group) and None not in found else None for group, found in both]
    timed = answers_from_times([tuple(group) for group in groups], slowest)
    return tuple(_answer(answers, by_time) for answers, by_time in zip(of_groups, timed, strict=True))


def _answer(answers: Sequence[Said], by_time: Answer) -> Answer:
    if not all(answers):
        return Answer.HUNG
    if any(answer and answer["state"] != "ok" for answer in answers):
        return Answer.BAD
    # Where too few peers are there to judge its time, its results were right.
    return Answer.OK if by_time is Answer.MISSING else by_time


def _stuck(groups: Sequence[Sequence[int]], said: Mapping[int, Said]) -> list[int]:
    """Ranks whose process never came back from a test that ended, in error or not, for others of the same group."""
    silent = [[rank for rank in group if not said.get(rank)] for group in groups]
    return [rank for group, quiet in zip(groups, silent, strict=True) if len(quiet) < len(group) for rank in quiet]


def _readings(verdict: Verdict, ranks: Sequence[int], reasons: Mapping[int, str]) -> Iterator[Reading]:
    def named(members: Group) -> list[int]:
        return [ranks[m] for m in members]

    fields = {"ranks": len(ranks), "rounds": verdict.rounds, "tests": verdict.member_tests}
    yield Reading("links.search", "", {**fields, "is_complete": verdict.is_complete, "notes": "; ".join(verdict.notes)})
    for accusation in verdict.accused:
        who = named(accusation.members)
        tests = [named(t.group) for t in accusation.tests if t.answer in (Answer.BAD, Answer.HUNG)]
        reason = next((reasons[rank] for test in tests for rank in test if rank in reasons), "")
        kind = "links.bad_rank" if len(who) == 1 else "links.bad_link"
        shown = "; ".join(" ".join(map(str, test)) for test in tests[:_MOST_TESTS_SHOWN])
        yield Reading(kind, "-".join(map(str, who)), {"failed_tests": shown, "reason": reason}, who[0])
    for open_one in verdict.undecided:
        who = named(open_one.members)
        yield Reading("links.undecided", "-".join(map(str, who)), {"why": open_one.why}, who[0])
    for member in verdict.unreachable:
        yield Reading("links.stuck", str(ranks[member]), {"rounds": verdict.rounds}, ranks[member])


class TestProcess:
    """This rank's worker, which tests groups; ended and started anew when it hangs. `options`: those of check/worker.py."""

    __test__ = False

    def __init__(self, options: Mapping[str, object]) -> None:
        self._command = worker_command("groups", {**options, "start-limit": _START_LIMIT_S})
        self._worker: Worker | None = None

    def is_ready(self) -> bool:
        """Starts it if it does not run; whether it can test. Blocks up to the start limit."""
        if self._worker is not None and self._worker.is_running:
            return True
        self.end()
        self._worker = Worker(self._command, {"OMP_NUM_THREADS": "1", **os.environ})
        if "ready" in self._answer(self._worker, _START_LIMIT_S):
            return True
        self.end()
        return False

    def test(self, number: int, ranks: list[int], prefix: str, limit_s: float) -> dict[str, Any] | None:
        """What it says of a group; None where it says nothing within twice the limit, or does not run. Blocks up to that."""
        command = {"test": number, "ranks": ranks, "prefix": prefix, "limit_s": limit_s}
        if self._worker is None or not self._worker.send(command):
            return None
        answer = self._answer(self._worker, 2 * limit_s)
        if answer.pop("test", None) == number:
            return answer
        self.end()
        return None

    @staticmethod
    def _answer(worker: Worker, limit_s: float) -> dict[str, Any]:
        """Its next line; an empty dict where none comes."""
        deadline = time.monotonic() + limit_s
        while not worker.is_silent and (left_s := deadline - time.monotonic()) > 0:
            if lines := worker.lines(min(left_s, _POLL_S)):
                return lines[0]
        return {}

    def end(self) -> None:
        """Ends it, if it runs."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with suppress(OSError):
                worker.end()
