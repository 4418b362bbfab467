"""The cases of rank0-alone."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.cases.rank_lags import counted
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_SAVING = "INFO Saving model checkpoint to out/checkpoint-500\n"

CASES = {
    "rank0-alone": (
        Fires(log_case(_SAVING + timeouts((0, 140, "ALLREDUCE", 1))), (0,)),
        Fires(log_case("`Trainer.fit` stopped: `max_epochs=3` reached.\n" + timeouts((0, 140, "ALLREDUCE", 1))), (0,)),
        Fires(log_case(timeouts((0, 517, "_ALLGATHER_BASE", 64)) + "\n" + counted((0, 517, 516))), ()),
        Quiet(
            log_case(timeouts((0, 517, "_ALLGATHER_BASE", 64)) + "\n" + counted((0, 580, 516))),
            "calls run on behind it",
        ),
        Quiet(log_case(timeouts((0, 3, "ALLREDUCE", 1))), "a barrier: the others may still be at work"),
        Quiet(log_case(timeouts((0, 9, "ALLREDUCE", 1), (1, 9, "ALLREDUCE", 1))), "another rank waits as well"),
    ),
}
