"""Forwards of DDP as their calls were recorded: one that a rank makes alone, and one in which it has a buffer more to broadcast than the others."""

from __future__ import annotations

from unhang.analyze.align import calls_at
from unhang.analyze.divergence import Divergence
from unhang.analyze.situation import Situation
from unhang.analyze.source import calls_only_on_rank_zero, surroundings
from unhang.model import CollectiveCall, Frame

_MOST_BUFFERS = 64
_FORWARD = ("_pre_forward", "_sync_buffers", "forward")


def has_one_more_buffer(s: Situation, d: Divergence) -> bool:
    """Whether the odd ranks broadcast more buffers in one forward than the others, who went on behind it.

    Both began the forward at the same call. Each buffer is broadcast once: two alike are two forwards.
    """
    if not d.is_decided or not _syncs_buffers(d.odd_call) or _syncs_buffers(d.reference_call):
        return False
    group = s.case.calls.groups.index(d.group)
    mine, theirs = _run(s, group, d.odd[0], d), _run(s, group, d.reference[0], d)
    kinds = [(c.in_sizes, c.dtype) for c in (*mine, d.odd_call)]
    return bool(theirs) and len(mine) == len(theirs) and len(set(map(str, kinds))) == len(kinds)


def _run(s: Situation, group: int, rank: int, d: Divergence) -> list[CollectiveCall]:
    """The broadcasts of buffers right before the call at which the ranks part, from the line of the odd ranks' forward."""
    found: list[CollectiveCall] = []
    for seq in range(d.seq - 1, max(0, d.seq - _MOST_BUFFERS), -1):
        call = calls_at(s.index, group, seq).get(rank)
        if call is None or not _syncs_buffers(call):
            break
        found.append(call)
    return found


def _syncs_buffers(call: CollectiveCall) -> bool:
    return any(
        f.function == "_sync_buffers" and f.file.endswith("nn/parallel/distributed.py") for f in call.frames or ()
    )


def hidden_forward(d: Divergence) -> Frame | None:
    """The forward through a DDP wrapper on rank 0 alone that explains an extra broadcast of buffers, if there is just one.

    Such a forward issues no collective itself in evaluation; it makes the next forward on that rank broadcast the buffers.
    """
    frames = d.odd_call.frames or ()
    in_forward = any(f.file.endswith("nn/parallel/distributed.py") and f.function in _FORWARD for f in frames)
    around_odd = [surroundings(f.file, f.line) for f in d.odd_path]
    theirs = {test for f in d.reference_path for test in surroundings(f.file, f.line).tests}
    if not in_forward or d.odd != (0,) or any(a.depends_on_rank and not set(a.tests) <= theirs for a in around_odd):
        return None  # that it went elsewhere by its rank explains more than a forward that nobody saw
    found = {f for frame in d.odd_path for f in calls_only_on_rank_zero(frame.file, frame.line)}
    return found.pop() if len(found) == 1 else None
