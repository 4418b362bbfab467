"""Local variables that differ between the ranks in the function where their programs part: often the cause itself."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unhang.model import Case, Frame

_RANK_ITSELF = re.compile(r"(global_|local_)?rank|rk|r|local_world_rank|pid|seed|port", re.IGNORECASE)


def variables_of(case: Case, rank: int, frame: Frame) -> dict[str, str]:
    """The numbers and booleans of a rank's main thread in the innermost call of the frame's function."""
    evidence = case.ranks.get(rank)
    stack = evidence.main_stack if evidence else None
    found: dict[str, str] = {}
    for seen, name, value in stack.variables if stack else ():
        if (seen.file, seen.function) == (frame.file, frame.function):
            found.setdefault(name, value)
    return found


def differing(
    case: Case, odd: Sequence[int], reference: Sequence[int], frame: Frame
) -> tuple[tuple[str, str, str], ...]:
    """(name, value on the odd ranks, value on the others) of variables on which the sides disagree and each side agrees.

    The rank's own number differs by nature and is left out.
    """
    left, right = ([variables_of(case, r, frame) for r in ranks] for ranks in (odd, reference))
    if not left or not right:
        return ()
    found = []
    for name in left[0]:
        ours, theirs = {v.get(name) for v in left}, {v.get(name) for v in right}
        if (
            len(ours) == len(theirs) == 1
            and None not in ours | theirs
            and ours != theirs
            and not _RANK_ITSELF.fullmatch(name)
        ):
            found.append((name, str(ours.pop()), str(theirs.pop())))
    return tuple(found)
