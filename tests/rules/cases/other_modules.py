"""The cases of other-modules."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_LINE = "Invalidate trace cache @ step 1: expected module 25, but got module 323\n"

CASES = {
    "other-modules": (
        Fires(
            log_case(
                _LINE
                + timeouts((1, 9, "_ALLGATHER_BASE", 64), (2, 9, "_ALLGATHER_BASE", 64), (7, 9, "_ALLGATHER_BASE", 64))
            ),
            (),
        ),
        Quiet(log_case(_LINE + "{'loss': 6.16}\n{'loss': 6.10}"), "the job goes on"),
        Quiet(log_case(_LINE + timeouts((1, 9, "BROADCAST", 1))), "no gather of parameters"),
        Quiet(log_case(_LINE + "{'loss': 6.1}\n" + timeouts((1, 9, "_ALLGATHER_BASE", 64))), "they trained on"),
    ),
}
