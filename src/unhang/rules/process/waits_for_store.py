"""Rule: ranks wait for a message through the store that does not come, because of a collective on which they disagree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from unhang.analyze.align import StuckCollective
from unhang.analyze.callpath import Path, fork_of, user_path
from unhang.analyze.shifted import foretold, tokens_of
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.streams import Streams, stack_path
from unhang.model import CollectiveCall, EvidenceLine, Finding, Fix
from unhang.model.example import Fires, Quiet, pending
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case
from unhang.rules.late import describe

_WAIT = {r: ["broadcast[8]@main:10 !"] for r in (0, 1, 2)}
_STACKS = {**dict.fromkeys((0, 1, 2), "main:10>~comm"), 3: "main:5>get:15>~comm"}
_KEY = {3: [pending("store_wait", where="main:5>get:15", detail="inbox/7")]}
_ORDER = ["all_gather[8]@main:6>train:20", "all_reduce[8]@main:6>train:22", "all_reduce[1]@main:6>train:24"]
_IDLE: dict[str, Any] = {
    "pending": {r: [pending("store_wait", where="main:5>get:15", detail=f"orders{r}/4")] for r in (0, 1)},
    "stacks": {0: "main:5>get:15>~comm", 1: "main:5>get:15>~comm"},
    "world": 3,
    "hang": "suspected",
}


def _after_three_orders(last: str) -> Mapping[int, Sequence[str]]:
    """Two ranks that have done three orders, and one that has made a call after them."""
    return {0: _ORDER * 3, 1: _ORDER * 3, 2: [*_ORDER * 3, f"{last} !"]}


def _within_the_fourth_order() -> Mapping[int, Sequence[str]]:
    """Two ranks in the last call of an order, and one that has not made it."""
    orders = [f"workers/{call}" for call in _ORDER * 4]
    return {r: [*orders[:-1], *([f"{orders[-1]} !"] if r < 2 else [])] for r in range(3)}


_LEFT: dict[str, Any] = {
    "pending": {r: [pending("store_wait", where="main:5>get:15", detail=f"orders{r}/5")] for r in (2, 3)},
    "stacks": {
        0: "main:6>train:24>~comm",
        1: "main:6>train:24>~comm",
        2: "main:5>get:15>~comm",
        3: "main:5>get:15>~comm",
    },
    "groups": {"workers": (0, 1, 2)},
    "hang": "suspected",
}


class WaitsForStore(Rule):
    """A message through the store does not come, because ranks disagree on a collective.

    What it detects:
        The rank that all others wait for has not issued the collective; its main thread waits for a key of a store. Or the smaller
        part of a group has made a call a second time at once, which nobody has ever done, and all the others of the group have made it
        once and wait for a key. Or it has left the function in which it always made the call that the others are in, and waits for a key,
        as all ranks outside of the group do.

    Why it hangs:
        The one that should set the key is itself in the collective, or waits for the answer of one that is. The programs disagree on
        what comes next.

    How to confirm:
        The key, and who sets it; the collective that the others are in, and the branch that should lead this rank to it.

    How to fix:
        Let the rank take part in the collective, or let the others leave it out: one protocol for both sides.

    Sources:
        A weight sync in which the receiver's table had lost one parameter.
    """

    id = "waits-for-store"
    cause = "code-divergence"
    needs = ("stacks",)
    EXAMPLES: ClassVar = (
        Fires(make_case(_WAIT, hang="suspected", stacks=_STACKS, pending=_KEY), (3,), 15),
        Quiet(
            make_case(
                {1: ["barrier@main:50 !"]}, world=2, hang="suspected", stacks={0: "main:40>~comm", 1: "main:50>~comm"}
            ),
            "a rank in another call than a store's",
        ),
        Quiet(
            make_case({0: _WAIT[0]}, hang="suspected", stacks={0: "main:10>~comm", 3: _STACKS[3]}, pending=_KEY),
            "others are free to set the key",
        ),
        Fires(make_case(_after_three_orders(_ORDER[-1]), **_IDLE), (2,), 24),
        Quiet(
            make_case(_after_three_orders(_ORDER[0]), **_IDLE),
            "the call with which an order begins: the others' orders are late",
        ),
        Quiet(
            make_case(_after_three_orders("all_reduce[5]@evaluate:30"), **_IDLE),
            "a call of an order that there was not before",
        ),
        Quiet(
            make_case(_after_three_orders(_ORDER[-1]), **{**_IDLE, "pending": {0: _IDLE["pending"][0]}}),
            "one of the others does not wait for a message",
        ),
        Fires(make_case(_within_the_fourth_order(), **_LEFT), (2,), 24),
        Quiet(
            make_case(
                _within_the_fourth_order(),
                **{**_LEFT, "stacks": {**_LEFT["stacks"], 2: "main:6>train:23>get:15>~comm"}},
            ),
            "it waits for a message within the function: it may come to the call",
        ),
        Quiet(
            make_case(_within_the_fourth_order(), **{**_LEFT, "pending": {2: _LEFT["pending"][2]}}),
            "a rank outside of the group may send the message",
        ),
        Quiet(
            make_case(
                {r: [*c[:2], *(c[-1:] if r < 2 else ())] for r, c in _within_the_fourth_order().items()}, **_LEFT
            ),
            "no earlier order tells what comes next",
        ),
        Quiet(
            make_case(
                {r: [*_ORDER, _ORDER[-1], *_ORDER, *([f"{_ORDER[-1]} !"] if r == 2 else [])] for r in range(3)},
                **_IDLE,
            ),
            "an order of the last call alone is nothing new",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if nobody is left who could set the key, or for each call that was made twice."""
        if s.divergence is not None or s.primary_failure is not None or not s.judges_waits:
            return
        yield from (_made_twice(s, stuck) for stuck in s.stuck if _is_made_twice(s, stuck))
        left_out = [_left_out(s, stuck) for stuck in s.stuck if _is_left_out(s, stuck)]
        yield from left_out
        if left_out:
            return
        for late in s.late:
            waits = any(e.kind == "store" for e in s.waits.edges_of(late.rank))
            if waits and late.activity.kind == "communication" and len(late.victims) == len(s.case.world) - 1:
                yield describe(
                    s, self, late, 0.85, f"waits for {_key(s, late)} of the store", _FIXES, tuple(_key_line(s, late))
                )


def _is_made_twice(s: Situation, stuck: StuckCollective) -> bool:
    """Whether the few who wait have just made the same call, which nobody made twice before, and the others wait for a key."""
    few, others = stuck.waiting, tuple(stuck.missing)
    if not 0 < len(few) < len(others) or not all(_waits_for_key(s, r) for r in others):
        return False
    left = s.departures((*few, *others))
    if left != {r: stuck.calls[r].row for r in few}:
        return False
    twice = {r: _repetitions(s, r, stuck.index) for r in (*few, *others)}
    return all(rows == ([left[r]] if r in left else []) for r, rows in twice.items())


def _repetitions(s: Situation, rank: int, group: int) -> list[int]:
    """The rows of a rank's calls of a group that are like the one before."""
    rows = s.case.calls.rows(rank=rank, group=group)
    tokens = s.habits.tokens[rows]
    return [int(row) for row in rows[1:][tokens[1:] == tokens[:-1]]]


def _made_twice(s: Situation, stuck: StuckCollective) -> Finding:
    few, others = stuck.waiting, tuple(sorted(stuck.missing))
    call = stuck.calls[few[0]]
    title = (
        f"{w.name_ranks(few)} {w.verb(few, 'makes', 'make')} {w.name_call(call)} a second time{_at(call)}; {w.name_ranks(others)} "
        f"made it once and {w.verb(others, 'waits', 'wait')} for a key of the store"
    )
    because = (
        "No rank has made this call twice at once before. The others are where they always wait for the next message, which whoever "
        "waits for this call's answer does not send. An order that was given to some ranks alone would look the same."
    )
    return _told(s, few, call, title, because, _awaited(s, others))


def _told(
    s: Situation, few: tuple[int, ...], call: CollectiveCall, title: str, because: str, more: Iterable[EvidenceLine]
) -> Finding:
    path = user_path(call.frames)
    return Finding(
        rule=WaitsForStore.id,
        cause=WaitsForStore.cause,
        title=title,
        confidence=0.75,
        culprit_ranks=few,
        victim_ranks=s.others(few),
        because=because,
        process_group=w.group_of(call.group),
        collective=w.collective_of(call, call.seq),
        location=w.location_of(path[-1] if path else None),
        evidence=(w.path_line(call.rank, f"#{call.seq} {w.name_call(call)} (waits)", path), *more),
        fixes=_FIXES,
    )


def _at(call: CollectiveCall) -> str:
    path = user_path(call.frames)
    return f" at {w.place(path[-1])}" if path else ""


def _awaited(s: Situation, ranks: Iterable[int]) -> list[EvidenceLine]:
    return [w.waiting_line(e) for r in list(ranks)[:4] for e in s.waits.edges_of(r)[:1]]


def _is_left_out(s: Situation, stuck: StuckCollective) -> bool:
    """Whether the few who are missing always made this call next, and have left the function in which they did."""
    few, others = tuple(stuck.missing), stuck.waiting
    if not 0 < len(few) < len(others) or not all(_waits_for_key(s, r) for r in s.case.world if r not in others):
        return False
    here = tokens_of(s.case, {stuck.seq: stuck.calls[others[0]].row})[stuck.seq]
    streams = Streams(s.case, stuck.index, stuck.seq)
    for rank in few:
        made, stack = tokens_of(s.case, streams.rows.get(rank, {})), stack_path(s.case, rank)
        if stuck.seq - 1 not in made or not stack or foretold(made, stuck.seq)[:1] != [here]:
            return False
        if _shared(stack, here[1]) >= _shared(made[stuck.seq - 1][1], here[1]):
            return False
    return True


def _shared(left: Path, right: Path) -> int:
    """How many functions two paths share, from the outermost one on."""
    if left == right:
        return len(left)
    fork = fork_of(left, right)
    return fork.depth + 1 if fork is not None else 0


def _waits_for_key(s: Situation, rank: int) -> bool:
    edges = s.waits.edges_of(rank)
    return bool(edges) and all(e.kind == "store" for e in edges)


def _left_out(s: Situation, stuck: StuckCollective) -> Finding:
    few, others = tuple(sorted(stuck.missing)), stuck.waiting
    call = stuck.calls[others[0]]
    title = (
        f"{w.name_ranks(few)} left out {w.name_call(call)}{_at(call)}, in which {w.name_ranks(others)} wait, and "
        f"{w.verb(few, 'waits', 'wait')} for a key of the store"
    )
    because = (
        f"This call has always followed the last one that {w.name_ranks(few)} made, and {w.verb(few, 'it has', 'they have')} left "
        "its function. Nobody is left who would send the next message: all wait."
    )
    stacks = [line for r in few[:2] for line in w.stack_lines(s.case.ranks.get(r), 3)]
    return _told(s, few, call, title, because, (*stacks, *_awaited(s, few)))


def _key(s: Situation, late: LateRank) -> str:
    edge = next((e for e in s.waits.edges_of(late.rank) if e.kind == "store"), None)
    return edge.what.removesuffix(" of the store") if edge else "a key"


def _key_line(s: Situation, late: LateRank) -> Iterable[EvidenceLine]:
    for edge in s.waits.edges_of(late.rank):
        yield EvidenceLine(f"rank {late.rank} waits", f"for {edge.what}")


_FIXES = (
    Fix(
        "One protocol for both sides",
        patch="check on both sides the list of what is sent (names, count) before the first collective of a round",
        verify="unhang run -- <the same command>",
        undo="revert the edit",
    ),
)
