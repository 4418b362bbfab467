"""The rule on groups that not all ranks made alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unhang.analyze.align import majority
from unhang.analyze.leaving import all_in_unknown_calls
from unhang.analyze.sides import started_ns
from unhang.analyze.situation import Situation
from unhang.analyze.source import around
from unhang.model import EvidenceLine, PendingCall
from unhang.rules import wording as w
from unhang.rules.advice import deciding, gate_of, said_plainly
from unhang.rules.base import Found, rule


@rule("subgroup-not-created-by-all", needs=("ranks",))
def subgroup_not_created_by_all(s: Situation) -> Found | None:
    """The first `new_group` that differs, if someone waits in one, or all in a group of which NCCL makes the communicator."""
    if not any(e.kind == "new_group" and e.targets for e in s.waits.edges) and not all_in_unknown_calls(s):
        return None
    made = {r: [c for c in e.pending if c.kind == "new_group"] for r, e in s.case.ranks.items()}
    for i in range(max((len(calls) for calls in made.values()), default=0)):
        details = {r: calls[i].detail if i < len(calls) else "" for r, calls in made.items()}
        if len(set(details.values())) > 1:
            return _not_by_all(s, made, details, i)
    return None


def _not_by_all(
    s: Situation, made: Mapping[int, Sequence[PendingCall]], details: Mapping[int, str], i: int
) -> Found | None:
    named = {d for d in details.values() if d}
    behind = {r for r, d in details.items() if not d}
    if len(named) == 1 and any(late.rank in behind for late in s.late):
        return None  # those behind simply have not come yet: the rules on late ranks say where they are
    narrow = min(named, key=lambda d: (d.count(","), d))
    makers = tuple(sorted(r for r, d in details.items() if d == narrow))
    call = made[makers[0]][i]
    _, other, has_majority = majority(dict(details))
    culprits = other if has_majority else makers  # without a majority those that made the narrower group
    frame = next(iter(call.frames), None)
    gate = deciding(around(frame, started_ns(s.case)).conditions) if frame else None
    others = [r for r in s.case.in_sight if r not in makers]
    say, more = said_plainly(gate, frame, makers, others, "new_group", is_skipped=False)
    words = {
        "who": w.name_ranks(makers),
        "call": call.detail,
        "line": w.place(frame),
        "others": w.name_ranks(others),
        **more,
    }
    seen = {
        r: "; ".join(f"#{c.index} {c.detail}" + ("" if c.ended_ns else " (waits)") for c in calls) or "no call"
        for r, calls in sorted(made.items())[:8]
    }
    return Found(
        0.94,
        culprits,
        [EvidenceLine(f"rank {r} new_group", text) for r, text in seen.items()],
        words,
        say,
        victims=s.others(culprits),
        location=w.location_of(frame),
        collective={"op": "new_group", "seq": call.index},
        condition=gate_of(gate),
    )
