"""The cases of slower-than-others."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet


def _counts(rank: int, last: int, minutes: int, begin: int = 0) -> str:
    """Lines of one rank that counts to 8, a part each so many minutes."""
    return "".join(
        f"2025-09-01 {10 + (begin + n * minutes) // 60}:{(begin + n * minutes) % 60:02}:00 [rank{rank}]: layer {n}/8 done\n"
        for n in range(1, last + 1)
    )


_GAVE_UP = "2025-09-01 12:30:00 [rank1]: RuntimeError: Application timeout caused pair closure\n"

CASES = {
    "slower-than-others": (
        Fires(log_case(_counts(1, 8, 1) + _counts(0, 6, 12) + _GAVE_UP), (0,)),
        Quiet(
            log_case(_counts(1, 8, 1) + _counts(0, 6, 1, begin=100) + _GAVE_UP),
            "they are equally fast: one began later",
        ),
        Quiet(log_case(_counts(1, 8, 1) + _counts(0, 6, 12)), "nobody waited in vain"),
        Quiet(log_case(_counts(1, 7, 1) + _counts(0, 6, 12) + _GAVE_UP), "the others have not done it either"),
    ),
}
