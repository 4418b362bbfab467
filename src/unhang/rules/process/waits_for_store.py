"""Rule: a rank waits for a key of a store that nobody can set any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import LateRank, Situation
from unhang.model import EvidenceLine, Finding, Fix
from unhang.model.example import Fires, Quiet, pending
from unhang.rules.base import Rule
from unhang.rules.examples import make_case
from unhang.rules.late import describe

_WAIT = {r: ["broadcast[8]@main:10 !"] for r in (0, 1, 2)}
_STACKS = {**dict.fromkeys((0, 1, 2), "main:10>~comm"), 3: "main:5>get:15>~comm"}
_KEY = {3: [pending("store_wait", where="main:5>get:15", detail="inbox/7")]}


class WaitsForStore(Rule):
    """A rank waits for a message through the store while every other rank waits for it in a collective.

    What it detects:
        The rank that all others wait for has not issued the collective; its main thread waits for a key of a store.

    Why it hangs:
        The one that should set the key is itself in the collective. The programs disagree on what comes next.

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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if nobody is left who could set the key."""
        if s.divergence is not None or s.primary_failure is not None or not s.judges_waits:
            return
        for late in s.late:
            waits = any(e.kind == "store" for e in s.waits.edges_of(late.rank))
            if waits and late.activity.kind == "communication" and len(late.victims) == len(s.case.world) - 1:
                yield describe(
                    s, self, late, 0.85, f"waits for {_key(s, late)} of the store", _FIXES, tuple(_key_line(s, late))
                )


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
