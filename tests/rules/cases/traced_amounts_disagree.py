"""The cases of traced-amounts-disagree."""

from __future__ import annotations

from tests.rules.cases.traced_calls_disagree import traced
from tests.rules.notation import log_case
from unhang.testing import Fires, Quiet

CASES = {
    "traced-amounts-disagree": (
        Fires(
            log_case(
                traced((0, "AllGather", "28c", 41), (1, "AllGather", "28c", 40), (2, "AllGather", "28c", 41)),
            ),
            (1,),
        ),
        Quiet(log_case(traced((0, "AllReduce", "28c", 99), (1, "AllGather", "28c", 5))), "other calls"),
    ),
}
