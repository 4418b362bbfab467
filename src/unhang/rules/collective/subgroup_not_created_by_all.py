"""Rule: new_group was not called by every rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.align import majority
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, PendingCall
from unhang.model.example import Fires, Quiet, pending
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_WORLD = "[0, 1, 2, 3]"


def _made(subset: bool) -> list[PendingCall]:
    first = [pending("new_group", done=True, index=1, where="main:5", detail="[0, 1]")] if subset else []
    return [*first, pending("new_group", index=len(first) + 1, where="main:8", detail=_WORLD)]


class SubgroupNotCreatedByAll(Rule):
    """`new_group` is a collective over the whole world, and some ranks did not call it.

    What it detects:
        The ranks' calls of `new_group` differ: some created a group that the others did not, or have not yet.

    Why it hangs:
        Every rank of the default group has to call `new_group`, members or not. A rank that did not has another group counter:
        the next groups get other names on it, and all wait in the store for keys that nobody sets. No collective is recorded.

    How to confirm:
        The finding lists the calls of `new_group` per rank.

    How to fix:
        Move `new_group` out of the condition; use the group inside it.

    Sources:
        PyTorch documentation of torch.distributed.new_group.
    """

    id = "subgroup-not-created-by-all"
    cause = "code-divergence"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(make_case({}, pending={r: _made(r in (0, 1)) for r in range(4)}), (0, 1), 5),
        Fires(make_case({}, pending={r: _made(r == 2) for r in range(4)}), (2,), 5),
        Quiet(
            make_case(
                {},
                pending={r: [pending("new_group", done=True, index=1, detail="[0, 1]")] for r in range(4)},
                hang=None,
                exit_code=0,
            ),
            "every rank created the group",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if someone waits in new_group and the calls differ."""
        if not any(e.kind == "new_group" and e.targets for e in s.waits.edges):
            return
        made = {r: [c for c in e.pending if c.kind == "new_group"] for r, e in s.case.ranks.items()}
        for i in range(max(len(calls) for calls in made.values())):
            details = {r: calls[i].detail if i < len(calls) else "" for r, calls in made.items()}
            if len(set(details.values())) > 1:
                yield from _finding(s, made, details, i)
                return


def _culprits(details: dict[int, str]) -> tuple[int, ...]:
    """The minority; without one, those that made the narrower group."""
    _, other, has_majority = majority(details)
    if has_majority:
        return other
    narrow = min({d for d in details.values() if d}, key=lambda d: (d.count(","), d))
    return tuple(sorted(r for r, d in details.items() if d == narrow))


def _finding(s: Situation, made: dict[int, list[PendingCall]], details: dict[int, str], i: int) -> Iterable[Finding]:
    named = {d for d in details.values() if d}
    behind = {r for r, d in details.items() if not d}
    if len(named) == 1 and any(late.rank in behind for late in s.late):
        return  # those behind simply have not come yet: the rules on late ranks say where they are
    narrow = min(named, key=lambda d: (d.count(","), d))
    call = next(made[r][i] for r, d in sorted(details.items()) if d == narrow)
    makers = tuple(sorted(r for r, d in details.items() if d == narrow))
    culprits = _culprits(details)
    frame = next(iter(call.frames), None)
    yield Finding(
        rule=SubgroupNotCreatedByAll.id,
        cause=SubgroupNotCreatedByAll.cause,
        title=f"only {w.name_ranks(makers)} called new_group({call.detail}) at {w.place(frame)}; {w.name_ranks(s.others(makers))} did not",
        confidence=0.94,
        culprit_ranks=culprits,
        victim_ranks=s.others(culprits),
        because="new_group has to be called by every rank of the world; now the ranks' group counters differ and they wait for each other's keys in the store.",
        collective={"op": "new_group", "seq": call.index},
        location=w.location_of(frame),
        evidence=tuple(
            EvidenceLine(
                f"rank {r} new_group",
                "; ".join(f"#{c.index} {c.detail}" + ("" if c.ended_ns else " (waits)") for c in calls) or "no call",
            )
            for r, calls in sorted(made.items())[:8]
        ),
        fixes=(
            Fix(
                "Create the group on every rank, use it on its members",
                patch="group = dist.new_group(ranks)   # unconditionally\nif dist.get_rank() in ranks: ... use group ...",
                verify="unhang run -- <the same command>",
                undo="revert the edit",
            ),
        ),
    )
