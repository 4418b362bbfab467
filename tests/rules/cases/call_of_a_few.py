"""The cases of call-of-a-few."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_HEARD = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump signal due to a collective timeout from "
    "rank {3} and we will try our best to dump the debug info. Last enqueued NCCL work: {1}, last completed NCCL work: {2}."
)
_WAITED = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {0}] failure detected by watchdog at work sequence id: {1} "
    "PG status: last enqueued work: {1}, last completed work: {2}"
)


def counted(*ranks: tuple[int, int, int]) -> str:
    """What the watchdogs tell of (rank, enqueued, completed): of those with an open call that it timed out."""
    return "\n".join((_HEARD if n == done else _WAITED).format(r, n, done, 9) for r, n, done in ranks)


_ONE = timeouts((0, 11, "ALLREDUCE", 1)) + "\n"
_STEP = "step 120 loss 2.31\n"

CASES = {
    "call-of-a-few": (
        Fires(log_case(_ONE + counted((0, 11, 10), (1, 10, 10), (2, 10, 10), (3, 10, 10))), (0,)),
        Fires(
            log_case(
                timeouts((0, 8, "ALLGATHER", 32768), (1, 8, "ALLGATHER", 32768))
                + "\n"
                + counted((0, 8, 7), (1, 8, 7), (2, 7, 7), (3, 7, 7))
            ),
            (),
        ),
        Quiet(
            log_case(timeouts((1, 11, "ALLREDUCE", 1)) + "\n" + counted((0, 10, 10), (1, 11, 10))),
            "one rank stands by: it may be at work",
        ),
        Quiet(
            log_case(
                timeouts(*((r, 11, "ALLREDUCE", 1) for r in (2, 3, 4)))
                + "\n"
                + counted((0, 10, 10), (1, 10, 10), (2, 11, 10), (3, 11, 10), (4, 11, 10))
            ),
            "those that stand by are fewer: they may be late",
        ),
        Quiet(
            log_case(
                _ONE
                + timeouts((1, 40, "BROADCAST", 9), (2, 40, "BROADCAST", 9))
                + "\n"
                + counted((0, 11, 10), (1, 10, 10), (2, 10, 10))
            ),
            "those that stand by waited elsewhere",
        ),
        Quiet(
            log_case(
                _STEP
                + timeouts((0, 11, "ALLREDUCE", 7000000))
                + "\n"
                + counted((0, 11, 10), (1, 10, 10), (2, 10, 10), (3, 10, 10))
            ),
            "in training, a batch more than the others have",
        ),
        Quiet(
            log_case(
                "Saving model checkpoint to out\n" + _ONE + counted((0, 11, 10), (1, 10, 10), (2, 10, 10), (3, 10, 10))
            ),
            "the log tells what the others do instead",
        ),
    ),
}
