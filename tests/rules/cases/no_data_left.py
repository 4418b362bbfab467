"""The cases of no-data-left."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "no-data-left": (
        Fires(
            log_case(
                "[rank2]: no more data for this epoch\n"
                + timeouts((0, 99, "ALLREDUCE", 4096), (1, 99, "ALLREDUCE", 4096))
            ),
            (2,),
        ),
        Quiet(log_case("INFO worker: no more data, epoch done\nINFO epoch 2 begins"), "nobody waited"),
        Quiet(
            log_case("dataset exhausted, restarting\n{'loss': 1.2}\n" + timeouts((0, 99, "ALLREDUCE", 4096))),
            "they trained on",
        ),
    ),
}
