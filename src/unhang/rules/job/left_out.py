"""The rule on ranks that went past a call and closed a circle of waits by that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from unhang.analyze.order import left_out
from unhang.analyze.overtaking import Overtaking
from unhang.analyze.situation import Situation
from unhang.analyze.source import around
from unhang.rules import wording as w
from unhang.rules.advice import deciding, fixes_of, gate_of, said_plainly
from unhang.rules.base import Found, rule


@rule("call-left-out", needs=("ranks",))
def call_left_out(s: Situation) -> Iterator[Found]:
    """Each circle that ranks closed by going past a call."""
    for cycle in s.waits.cycles if s.divergence is None and s.judges_waits else ():
        if set(cycle) <= set(s.proven) and (found := left_out(s, cycle)):
            yield _went_past(s, found)


def _went_past(s: Situation, found: Sequence[Overtaking]) -> Found:
    culprits, first = tuple(sorted({o.rank for o in found})), found[0]
    call = (first.edge.kind, first.edge.group, first.edge.seq)
    is_shared = first.edge.kind == "collective"
    waits = [e for e in s.waits.edges if (e.kind, e.group, e.seq) == call] if is_shared else [first.edge]
    waiters = tuple(sorted({e.waiter for e in waits}))
    decisive = deciding(around(first.passed).conditions)
    evidence = s.case.ranks.get(waiters[0])
    made = evidence.main_frames if evidence else ()
    mine = [e for r in culprits for e in s.waits.edges_of(r)[:1]]
    words = {
        "who": w.name_ranks(culprits),
        "call": first.edge.what,
        "line": w.place(first.passed),
        "waiters": w.name_ranks(waiters),
        "wait": w.verb(waiters, "waits", "wait"),
        "function": first.passed.function,
        "stand": w.verb(culprits, "stands", "stand"),
        "waits": "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in mine[:4]),
    }
    stacks = [
        line
        for e in (*mine[:2], *waits[:2])
        for line in (w.waiting_line(e), *w.stack_lines(s.case.ranks.get(e.waiter), 2))
    ]
    say, more = said_plainly(decisive, first.passed, culprits, waiters, first.edge.what.split(" ")[0], is_skipped=True)
    return Found(
        0.85,
        culprits,
        (*w.code_line(first.passed, f"rank {waiters[0]} source"), *stacks),
        {**words, "others": w.name_ranks(waiters), **more},
        say,
        fixes=fixes_of(first.passed, decisive, w.name_ranks(culprits), made),
        condition=gate_of(decisive),
        victims=s.others(culprits),
        location=w.location_of(first.passed),
        group=w.group_named(first.edge.group),
        collective={"op": first.edge.what.split(" ")[0], "seq": first.edge.seq},
    )
