"""The cases of unbounded-data."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "unbounded-data": (
        Fires(
            log_case("INFO RANK 0: BATCH 80/inf\n" + timeouts((6, 70426, "ALLREDUCE", 1), (3, 70426, "ALLREDUCE", 1))),
            (),
        ),
        Quiet(log_case("INFO RANK 0: BATCH 80/inf"), "it runs"),
        Quiet(
            log_case("INFO RANK 0: BATCH 80/inf\n" + timeouts((6, 7, "ALLREDUCE", 1), (3, 7, "REDUCE", 1))),
            "other calls",
        ),
        Quiet(
            log_case("1042it [12:10,  1.43it/s]\n" + timeouts((0, 70426, "ALLREDUCE", 1), (1, 70426, "ALLREDUCE", 1))),
            "as far as is known all ranks wait",
        ),
        Quiet(
            log_case("1042it [12:10,  1.43it/s]\n" + timeouts((6, 70426, "ALLREDUCE", 9000000))),
            "a bucket of gradients: any rank may be stuck",
        ),
    ),
}
