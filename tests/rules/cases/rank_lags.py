"""The cases of rank-lags."""

from __future__ import annotations

from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet


def counted(*ranks: tuple[int, int, int]) -> str:
    """A log of counters, for examples: (rank, enqueued, completed)."""
    line = (
        "[rank{0}]:[E ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Timeout at NCCL work: {3}, "
        "last enqueued NCCL work: {1}, last completed NCCL work: {2}."
    )
    return "\n".join(line.format(r, enqueued, done, done + 1) for r, enqueued, done in ranks)


CASES = {
    "rank-lags": (
        Fires(log_case(counted((0, 37, 36), (1, 36, 36), (2, 37, 36), (3, 37, 36))), (1,)),
        Quiet(
            log_case(counted((0, 37, 36), (1, 12, 12), (2, 37, 36))),
            "far behind: it left the common path, the reason is not told",
        ),
        Quiet(log_case(counted((0, 37, 36), (1, 37, 36), (2, 37, 36))), "all are at the same call"),
        Quiet(
            log_case("Saving model checkpoint to out\n" + counted((0, 36, 36), (1, 37, 36), (2, 37, 36))),
            "the log tells what the rank does instead",
        ),
        Quiet(log_case(counted((0, 37, 36), (1, 36, 35))), "two ranks: either may be the odd one"),
    ),
}
