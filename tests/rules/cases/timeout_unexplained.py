"""The cases of timeout-unexplained."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_OF_XLA = (
    "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: broadcast_sync0. Timed out task names:\n"
    "/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:0\n"
)

CASES = {
    "timeout-unexplained": (
        Fires(log_case(timeouts((0, 808, "ALLREDUCE", 9801523), (1, 808, "ALLREDUCE", 9801523))), ()),
        Fires(
            log_case(
                "   - [7] finished collective #182, but didn't join collective #183 (count from 1)\n"
                + timeouts((0, 241, "ALLREDUCE", 6))
            ),
            (7,),
        ),
        Fires(log_case("Stalled ops:\nallreduce.conv1.weight [missing ranks: 0]"), (0,)),
        Fires(log_case(_OF_XLA), (0, 3)),
        Fires(log_case("world size 4\n" + timeouts(*((r, 12, "ALLREDUCE", 9000) for r in (0, 1, 3)))), (2,)),
        Fires(log_case("world size 64\n" + timeouts(*((r, 12, "ALLREDUCE", 9000) for r in (0, 1, 3)))), ()),
        Quiet(log_case("INFO NCCL timeout is set to 1800000 ms"), "a setting"),
    ),
}
