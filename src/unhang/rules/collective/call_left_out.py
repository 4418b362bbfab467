"""Rule: a rank left out a call, and is in the next one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.overtaking import Overtaking, overtakings
from unhang.analyze.situation import Situation
from unhang.analyze.source import surroundings
from unhang.model import Finding, Fix, Frame
from unhang.model.example import Fires, Quiet, pending
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_SOURCE = """\
def main():
    for inputs in loader:
        if finite(loss):
            backward(loss)
        exchange(border)
        agree(loss)
"""
_ROUND = ["all_reduce[5]@main:4", "all_gather[1]@main:6"]
_SKIPPED_BY_1 = {0: [*_ROUND, "all_reduce[5]@main:4 !"], 1: _ROUND, 2: [*_ROUND, "all_reduce[5]@main:4 !"]}
_HERE, _THERE = "main:4>~comm", "main:5>~comm"
_EXCHANGE = [pending("isend", peer=2, where="main:5"), pending("recv", peer=0, where="main:5")]


class CallLeftOut(Rule):
    """A rank left out a call in which others wait for it, and waits for one of them in a later call of the same round.

    What it detects:
        A circle of waits whose ranks are in the same round of the same function: since the last collective that they completed
        together none has completed another call. One of them stands behind the line at which the others wait for it.

    Why it hangs:
        It will come to that call only in its next round, and its own call waits for ranks that do not get past theirs.

    How to confirm:
        Look at the condition around the line that was left out: it comes out differently on this rank.

    How to fix:
        Let all ranks make the call, or none: take the decision together.

    Sources:
        MUST (Hilbrich et al.): cycles of the waits-for graph.
    """

    id = "call-left-out"
    cause = "code-divergence"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                _SKIPPED_BY_1,
                world=3,
                source=_SOURCE,
                stacks={0: _HERE, 1: _THERE, 2: _HERE},
                pending={1: _EXCHANGE},
            ),
            (1,),
            4,
        ),
        Quiet(
            make_case(
                {0: ["all_reduce[5]@main:4 !"], 1: []},
                world=2,
                source=_SOURCE,
                stacks={0: _HERE, 1: _THERE},
                pending={1: [pending("recv", peer=0, where="main:5")]},
            ),
            "one of two, in the first round: the call may be one that the other alone makes",
        ),
        Quiet(
            make_case(
                _SKIPPED_BY_1,
                world=3,
                source=_SOURCE.replace("        exchange", "        else:\n            exchange"),
                stacks={0: _HERE, 1: "main:6>~comm", 2: _HERE},
                pending={1: [pending("recv", peer=0, where="main:6")]},
            ),
            "the lines are the two branches of one condition: neither is behind the other",
        ),
        Quiet(
            make_case(
                _SKIPPED_BY_1,
                world=3,
                source=_SOURCE,
                stacks={0: _HERE, 1: _THERE, 2: _HERE},
            ),
            "a rank that is late waits for nobody",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each circle that ranks closed by going past a call."""
        if s.divergence is None and s.judges_waits:
            for cycle in s.waits.cycles:
                if set(cycle) <= set(s.proven) and (found := left_out(s, cycle)):
                    yield _finding(s, found)


def left_out(s: Situation, cycle: tuple[int, ...]) -> tuple[Overtaking, ...]:
    """The calls that ranks of a circle left out, where more than the recorded calls tells where each of them is."""
    if not all(is_seen_elsewhere(s, r) for r in cycle):
        return ()
    return overtakings(s.case, s.stuck, s.waits.edges, cycle)


def is_seen_elsewhere(s: Situation, rank: int) -> bool:
    """Whether more than the recorded calls tells what the rank does."""
    evidence = s.case.ranks.get(rank)
    return evidence is not None and bool(evidence.stacks or evidence.pending)


def _finding(s: Situation, found: Sequence[Overtaking]) -> Finding:
    culprits, first = tuple(sorted({o.rank for o in found})), found[0]
    call = (first.edge.kind, first.edge.group, first.edge.seq)
    is_shared = first.edge.kind == "collective"
    waits = [e for e in s.waits.edges if (e.kind, e.group, e.seq) == call] if is_shared else [first.edge]
    waiters = tuple(sorted({e.waiter for e in waits}))
    who, where, wait = w.name_ranks(culprits), w.place(first.passed), w.verb(waiters, "waits", "wait")
    mine = [e for r in culprits for e in s.waits.edges_of(r)[:1]]
    return Finding(
        rule=CallLeftOut.id,
        cause=CallLeftOut.cause,
        title=f"{who} left out {first.edge.what} of {where}, in which {w.name_ranks(waiters)} {wait}, and went on",
        confidence=0.85,
        culprit_ranks=culprits,
        victim_ranks=s.others(culprits),
        because=f"All are in the same round of {first.passed.function}, and {who} {w.verb(culprits, 'stands', 'stand')} behind that line: "
        + "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in mine[:4])
        + ".",
        process_group={"pg_name": first.edge.group, "pg_desc": ""},
        collective={"op": first.edge.what.split(" ")[0], "seq": first.edge.seq},
        location=w.location_of(first.passed),
        evidence=(
            *w.code_line(first.passed, f"rank {waiters[0]} source"),
            *(
                line
                for e in (*mine[:2], *waits[:2])
                for line in (w.waiting_line(e), *w.stack_lines(s.case.ranks.get(e.waiter), 2))
            ),
        ),
        fixes=(_fix(first.passed),),
    )


def _fix(passed: Frame) -> Fix:
    tests = surroundings(passed.file, passed.line).tests
    condition = f"`{tests[-1]}`" if tests else "the condition before it"
    return Fix(
        "Let all ranks make the call, or none",
        patch=f"{passed.file}:{passed.line}: decide {condition} together: all-reduce it first (ReduceOp.MAX), so that every rank takes the same branch",
        verify="unhang run -- <the same command>: all ranks pass this line",
        undo="revert the edit",
    )
