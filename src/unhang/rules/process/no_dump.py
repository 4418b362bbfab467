"""Rule: the rank that everybody waits for left no dump."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.not_completed import in_flight
from unhang.rules.examples import make_case

_OPEN = ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"]


def candidates(s: Situation) -> tuple[int, ...]:
    """The ranks, one of which started it.

    Those that are waited for and left no dump; others without a dump for which these may be waiting in turn; and idle ranks
    that only these can be waiting for. A device that has not begun what its peers have is as good an explanation.
    """
    without = {r for r in s.case.world if s.recorded.is_unseen(r)}
    found, pending = set[int](), {late.rank for late in s.unseen_roots}
    while pending:
        found |= pending
        near = {r for g in s.case.groups if pending & set(g.ranks) for r in g.ranks}
        pending = near & without - found
    near = {r for g in s.case.groups if found & set(g.ranks) for r in g.ranks}
    stalled = {r for flight in in_flight(s) for r in flight.behind}
    return tuple(sorted(found | stalled | {r for r in near if s.recorded.is_idle(r)}))


class NoDump(Rule):
    """The ranks wait for one that left no dump, and every other rank waits.

    What it detects:
        All waits lead to a rank of which there is no file, while its peers dumped.

    Why it hangs:
        A process that is dead, frozen, or stuck in a driver call writes no dump and issues no call.

    How to confirm:
        Its log and exit code; the kernel log of its node; whether the file was merely not collected.

    How to fix:
        Depends on what became of the process. The finding does not guess.

    Sources:
        PyTorch documentation, flight recorder: every rank dumps when one rank's watchdog sees a timeout.
    """

    id = "no-dump"
    cause = "rank-crashed-earlier"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(make_case(dict.fromkeys((0, 1, 3), _OPEN), absent=[2]), (2,)),
        Quiet(
            make_case({**dict.fromkeys((0, 1, 3), _OPEN), 2: _OPEN[:1]}),
            "a rank whose dump can be read explains itself",
        ),
        Quiet(
            make_case({0: _OPEN, 1: ["all_reduce[8]@main:10"]}, absent=[2, 3]),
            "a rank whose dump shows that it has stopped explains the wait",
        ),
        Quiet(make_case(dict.fromkeys((0, 1, 3), _OPEN[:1]), absent=[2], hang=None), "nobody waits"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding, if nothing else explains the waits."""
        if not s.judges_waits or s.failures or s.divergences or s.idle_roots or not s.unseen_roots:
            return
        if s.recorded.stalled:
            return  # a device that stands still needs no other cause
        unseen = tuple(sorted(late.rank for late in s.unseen_roots))
        if any(late.edge.kind not in ("collective", "p2p") for late in s.unseen_roots):
            return
        open_to = candidates(s)
        is_sure = len(open_to) == 1
        is_alive = any(r in s.case.ranks for r in unseen)
        victims = tuple(sorted({v for late in s.unseen_roots for v in late.victims} - set(unseen)))
        who = w.name_ranks(unseen)
        yield Finding(
            rule=self.id,
            cause=self.cause if is_sure and not is_alive else "unknown",
            title=f"{who} left no dump, and {w.name_ranks(victims)} {w.verb(victims, 'waits', 'wait')} for {w.verb(unseen, 'it', 'them')}"
            + ("" if is_sure else f": one of ranks {w.ranges(open_to)} started it"),
            confidence=0.8 if is_sure else 0.4,
            culprit_ranks=unseen if is_sure else (),
            victim_ranks=victims,
            because=f"Every rank with a dump waits, and all waits lead to {who}."
            + (_why(is_alive) if is_sure else " Which of them it was, the dumps that are there do not tell."),
            evidence=tuple(w.waiting_line(e) for late in s.unseen_roots[:4] for e in (late.edge,)),
            fixes=(
                Fix(
                    f"Find out what became of {who}",
                    command="look at its log and exit code, and at the kernel log of its node (dmesg -T | tail -50)",
                    verify="with its dump or log, 'unhang diagnose' names the cause",
                    undo="nothing is changed",
                ),
            ),
        )


def _why(is_alive: bool) -> str:
    if is_alive:
        return " Its process is there, but gave neither its calls nor a stack."
    return " Its process was dead or could not write, or the file is lost."
