"""Whether the data of a rank ran out where it left a loop, by the ends of loaders that the recorder has noted."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.model import Case, Frame, PendingCall


def ran_out(
    case: Case, leavers: Sequence[int], stayers: Sequence[int], until_ns: int, at: Frame, is_framework: bool = False
) -> bool | None:
    """Whether a loader ended on a rank that left, and not, or after another number of batches, on one that stayed; None if not known.

    `until_ns`: when the leavers made the first call outside of the loop. `at`: the head of the loop, or the line that runs it in a
    framework. Other data than a loader's may have ended where no loader is known to be asked there.
    """
    known = [
        f for r in leavers if r in case.ranks for f in case.ranks[r].facts if f.kind == "program.loader" and f["ends"]
    ]
    if not known or not all(r in case.ranks for r in (*leavers, *stayers)):
        return None
    is_over_loader = any(_is_at(f.at, at) for f in known)
    stay = [_ends(case, r) for r in stayers]
    for rank in leavers:
        for place, end in _ends(case, rank).items():
            if end.started_ns > until_ns or (is_over_loader and place and not _is_at(place[0], at)):
                continue
            if any(_is_behind(ends.get(place), end) for ends in stay):
                return True
    return False if is_over_loader or is_framework else None


def _is_at(place: Frame | None, line: Frame) -> bool:
    """Whether a place is that line; of a long path the page has only the end."""
    return place is not None and place.line == line.line and line.file.endswith(place.file)


def _is_behind(theirs: PendingCall | None, mine: PendingCall) -> bool:
    """Whether a loader of another rank has not ended as often, or has ended after another number of batches."""
    if theirs is None or theirs.index < mine.index:
        return True
    return theirs.index == mine.index and theirs.detail != mine.detail


def _ends(case: Case, rank: int) -> dict[tuple[Frame, ...], PendingCall]:
    """The last end of a loader at each place of the program; one without a place where a thread of a library asks."""
    ends = (c for c in case.ranks[rank].pending if c.kind == "loader_end")
    return {c.frames: c for c in sorted(ends, key=lambda c: c.started_ns)}
