"""The cases of others-completed."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "others-completed": (
        Fires(log_case("Rank 1 completed\nRank 2 completed\n" + timeouts((0, 1, "ALLREDUCE", 20))), (0,)),
        Quiet(log_case("Rank 1 completed\n" + timeouts((0, 1, "ALLREDUCE", 20), (2, 1, "ALLREDUCE", 20))), "two wait"),
        Quiet(
            log_case("Rank 1 completed\nRank 2 completed\n" + timeouts((0, 907, "ALLREDUCE", 20))),
            "another, later call",
        ),
    ),
}
