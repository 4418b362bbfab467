"""The search over the ranks of a party: rank 0 plans a round, the ranks test their groups, rank 0 judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unhang.analyze.group_testing import Search, Verdict
from unhang.analyze.group_testing_answers import Answer, Group, answers_from_times
from unhang.model import Reading, Unavailable
from unhang.preflight.context import Context
from unhang.preflight.links.tester import TestProcess

_START_LIMIT_S = 60.0
_GRACE_S = 5.0
_MOST_ROUNDS = 60
_MOST_TESTS_TOLD = 6


@dataclass(frozen=True, slots=True)
class _Told:
    """What one rank says of its test."""

    state: str
    seconds: float | None
    reason: str


def search_links(context: Context, backend: str, device: str) -> Iterator[Reading | Unavailable]:
    """Rounds of tests until it is known which ranks or links are bad. All present ranks call it; rank 0 yields the readings.

    Blocks: up to the case limit for each round, of which there are seldom more than ten, and the start of the processes.
    """
    party, limit_s = context.party, context.options.case_limit_s
    ranks = party.present
    search = Search(len(ranks), max_rounds=_MOST_ROUNDS) if party.member.rank == 0 else None
    reasons: dict[int, str] = {}
    store, prefix = f"{party.member.address}:{party.member.port}", f"unhang-check/{party.member.run_id}/links"
    with TestProcess(party.member.rank, backend, device, store, _START_LIMIT_S) as process:
        for turn in range(_MOST_ROUNDS + 1):
            planned = [[ranks[i] for i in group] for group in search.next_round()] if search else None
            groups = party.share(f"links/{turn}/plan", planned, 2 * _START_LIMIT_S + limit_s)
            if not groups:
                break
            context.tell(f"testing links: round {turn + 1}, {len(groups)} groups")
            # All start together: else who waits for another's process to start would call the group hung.
            party.exchange(f"links/{turn}/ready", process.ensure(), _START_LIMIT_S + _GRACE_S)
            mine = next((group for group in groups if party.member.rank in group), None)
            answer = process.test(turn, mine, f"{prefix}/{turn}/{mine[0]}", limit_s) if mine else None
            told = party.collect(f"links/{turn}/told", answer, _START_LIMIT_S + 2 * limit_s + _GRACE_S)
            if search:
                reasons |= _reasons(told)
                gone = {*party.absent, *_stuck(groups, told)}
                search.tell(_answers(groups, told), [i for i, rank in enumerate(ranks) if rank in gone])
    if search:
        yield from _readings(search.verdict, ranks, reasons)


def _told(value: Any) -> _Told | None:
    return _Told(**value) if isinstance(value, dict) else None


def _reasons(told: Mapping[int, Any]) -> dict[int, str]:
    """What ranks said of a failure; the last one counts."""
    return {rank: t.reason for rank, value in told.items() if (t := _told(value)) and t.reason}


def _answers(groups: Sequence[Sequence[int]], told: Mapping[int, Any]) -> tuple[Answer, ...]:
    """A group is bad if a member got something wrong, or if it took much longer than its peers; hung if a member said nothing."""
    times: list[float | None] = []
    states: list[set[str]] = []
    for group in groups:
        answers = [_told(told.get(rank)) for rank in group]
        states.append({a.state if a else "silent" for a in answers})
        seconds = [a.seconds for a in answers if a and a.seconds is not None]
        times.append(max(seconds) if len(seconds) == len(group) else None)
    timed = answers_from_times([tuple(g) for g in groups], times)
    return tuple(_answer(seen, by_time) for seen, by_time in zip(states, timed, strict=True))


def _stuck(groups: Sequence[Sequence[int]], told: Mapping[int, Any]) -> list[int]:
    """Ranks whose process never came back from a test that ended, in error or not, for others of the same group."""
    silent = [[rank for rank in group if _told(told.get(rank)) is None] for group in groups]
    return [rank for group, quiet in zip(groups, silent, strict=True) if len(quiet) < len(group) for rank in quiet]


def _answer(seen: set[str], by_time: Answer) -> Answer:
    if "silent" in seen:
        return Answer.HUNG
    if seen != {"ok"}:
        return Answer.BAD
    return (
        Answer.OK if by_time is Answer.MISSING else by_time
    )  # too few peers to judge its time; its results were right


def _readings(verdict: Verdict, ranks: Sequence[int], reasons: Mapping[int, str]) -> Iterator[Reading]:
    def named(members: Group) -> list[int]:
        return [ranks[m] for m in members]

    fields = {"ranks": len(ranks), "rounds": verdict.rounds, "tests": verdict.member_tests}
    yield Reading("links.search", "", {**fields, "is_complete": verdict.is_complete, "notes": "; ".join(verdict.notes)})
    for accusation in verdict.accused:
        who = named(accusation.members)
        tests = [named(t.group) for t in accusation.tests if t.answer in (Answer.BAD, Answer.HUNG)]
        said = next((reasons[rank] for test in tests for rank in test if rank in reasons), "")
        kind = "links.bad_rank" if len(who) == 1 else "links.bad_link"
        shown = "; ".join(" ".join(map(str, test)) for test in tests[:_MOST_TESTS_TOLD])
        yield Reading(kind, "-".join(map(str, who)), {"failed_tests": shown, "reason": said}, who[0])
    for open_one in verdict.undecided:
        who = named(open_one.members)
        yield Reading("links.undecided", "-".join(map(str, who)), {"why": open_one.why}, who[0])
    for member in verdict.unreachable:
        yield Reading("links.stuck", str(ranks[member]), {"rounds": verdict.rounds}, ranks[member])
