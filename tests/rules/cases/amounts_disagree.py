"""The cases of amounts-disagree."""

from __future__ import annotations

from tests.rules.cases.calls_disagree import timeouts
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "amounts-disagree": (
        Fires(log_case(timeouts((0, 9, "ALLGATHER", 41), (1, 9, "ALLGATHER", 40), (2, 9, "ALLGATHER", 41))), (1,)),
        Quiet(log_case(timeouts((0, 9, "COALESCED", 41), (1, 9, "COALESCED", 40))), "parts of it may be uneven"),
        Quiet(
            log_case(timeouts((0, 9, "BROADCAST", 24084544), (1, 9, "BROADCAST", 64))),
            "so far apart that other tensors are meant",
        ),
    ),
}
