"""The cases of slower-than-others."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet


def _counts(rank: int, last: int, minutes: int, begin: int = 0) -> str:
    """Lines of one rank that counts to 8, a part each so many minutes."""
    return "".join(
        f"2025-09-01 {10 + (begin + n * minutes) // 60}:{(begin + n * minutes) % 60:02}:00 [rank{rank}]: layer {n}/8 done\n"
        for n in range(1, last + 1)
    )


def _bar(rank: int, *done: int) -> str:
    """Lines of one rank without times."""
    return "".join(f"[rank{rank}] generate_until: {n}/83\n" for n in done)


_GAVE_UP = "2025-09-01 12:30:00 [rank1]: RuntimeError: Application timeout caused pair closure\n"
_WAIT_OF_1 = timeouts((1, 2, "ALLREDUCE", 1)) + "\n"
_DONE = _bar(1, 20, 60, 83)

CASES = {
    "slower-than-others": (
        Fires(log_case(_counts(1, 8, 1) + _counts(0, 6, 12) + _GAVE_UP), (0,)),
        Fires(log_case(_DONE + _bar(2, 20, 44) + _WAIT_OF_1), (2,)),
        Fires(log_case(_bar(1, 20, 80) + "[rank1] wrote its part\n" + _bar(2, 20, 44) + _WAIT_OF_1), (2,)),
        Fires(log_case(_DONE + _bar(2, 20, 44) + _bar(3, 20, 50) + _WAIT_OF_1), ()),
        Quiet(
            log_case(_counts(1, 8, 1) + _counts(0, 6, 1, begin=100) + _GAVE_UP),
            "they are equally fast: one began later",
        ),
        Quiet(log_case(_counts(1, 8, 1) + _counts(0, 6, 12)), "nobody waited in vain"),
        Quiet(log_case(_counts(1, 7, 1) + _counts(0, 6, 12) + _GAVE_UP), "the others have not done it either"),
        Quiet(log_case(_bar(2, 20, 44) + _DONE + _WAIT_OF_1), "it stopped counting before the others were done"),
        Quiet(log_case(_bar(1, 20, 60) + _bar(2, 20, 44) + _WAIT_OF_1), "who waits still counts, too"),
    ),
}
