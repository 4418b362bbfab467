"""A rule on calls that differed and completed all the same: NCCL compares neither operations nor sizes."""

from __future__ import annotations

from unhang.analyze.align import StuckCollective, passed_mismatches
from unhang.analyze.callpath import user_path
from unhang.analyze.hosts import ON_DEVICE
from unhang.analyze.positions import bare_op
from unhang.analyze.situation import Situation
from unhang.rules import wording as w
from unhang.rules.base import Found, rule


@rule("passed-unnoticed", needs=("calls",))
def passed_unnoticed(s: Situation) -> Found | None:
    """The oldest, in a job that neither hangs nor failed: else what ended it is told first."""
    if s.is_hang or s.is_crash or s.primary_failure is not None:
        return None
    found = next((m for m in passed_mismatches(s.index) if m.group.backend == ON_DEVICE), None)
    return None if found is None else _described(s, found)


def _described(s: Situation, found: StuckCollective) -> Found:
    reference, odd = found.classes[0], tuple(sorted(r for part in found.classes[1:] for r in part))
    mine, theirs = found.calls[odd[0]], found.calls[reference[0]]
    path, culprits = user_path(mine.frames), odd if found.has_majority else ()
    is_of_size = bare_op(mine.op) == bare_op(theirs.op)
    return Found(
        0.9,
        culprits,
        [
            w.path_line(call.rank, f"#{found.seq} {w.name_call(call)} (completed)", user_path(call.frames))
            for call in (mine, theirs)
        ],
        {
            "odd": w.name_ranks(odd),
            "mine": w.name_call(mine),
            "others": w.name_ranks(reference),
            "theirs": w.name_call(theirs),
            "seq": found.seq,
            "group": found.group,
        },
        "sizes" if is_of_size else "calls",
        ("shape",) if is_of_size else ("same",),
        s.others(culprits) if culprits else (),
        w.location_of(path[-1] if path else None),
        w.group_of(found.group),
        w.collective_of(mine, found.seq),
        cause="size-mismatch" if is_of_size else "code-divergence",
    )
