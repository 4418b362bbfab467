"""The cases of ran-ahead."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.cases.rank_lags import counted
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

_APART = timeouts((0, 1516, "ALLREDUCE", 25427968), (1, 1517, "ALLREDUCE", 1))

CASES = {
    "ran-ahead": (
        Fires(log_case(_APART + "\n" + counted((0, 1516, 1515))), ()),
        Quiet(log_case(_APART + "\n" + counted((0, 1530, 1515))), "its program ran on: the call may only be late"),
        Quiet(log_case(_APART), "what else was issued is not told"),
        Quiet(
            log_case(timeouts((0, 16, "BROADCAST", 9), (1, 17, "ALLREDUCE", 1)) + "\n" + counted((0, 16, 15))),
            "the root of a broadcast may go on",
        ),
        Quiet(
            log_case(timeouts((0, 16, "ALLREDUCE", 9), (1, 17, "ALLREDUCE", 9)) + "\n" + counted((0, 16, 15))),
            "the same call, counted from elsewhere",
        ),
    ),
}
