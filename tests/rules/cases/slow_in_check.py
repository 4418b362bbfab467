"""The cases of slow-in-check."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_SUITE = read("collectives.suite gloo", ranks=4, cases=150)

CASES = {
    "slow-in-check": (
        Fires(
            readings_case(
                _SUITE, read("collectives.slow_rank compute_speed", rank=3, ratio=2.1, median_s=0.02, others_s=0.01)
            ),
            (3,),
        ),
        Fires(
            readings_case(
                _SUITE, read("collectives.ratio benchmark", rank=0, ratio=3.0, is_slower=True, now_s=3.0, before_s=1.0)
            ),
            (),
        ),
        Quiet(
            readings_case(_SUITE, read("collectives.ratio benchmark", rank=0, ratio=1.1, is_slower=False)),
            "as fast as then",
        ),
    ),
}
