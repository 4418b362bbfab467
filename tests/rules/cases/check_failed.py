"""The cases of checked-collective-failed."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_SUITE = read("collectives.suite gloo", ranks=4, cases=150)

CASES = {
    "checked-collective-failed": (
        Fires(
            readings_case(
                _SUITE,
                read(
                    "collectives.failure all_reduce", rank=None, verdict="wrong", said="rank 0: element 3 is 9, not 6"
                ),
                read(
                    "collectives.blame all_reduce",
                    rank=2,
                    ranks="2",
                    because="the contribution of rank 2 is in it twice",
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                _SUITE, read("collectives.failure barrier", rank=None, verdict="hung", because="all stand alike")
            ),
            (),
        ),
        Quiet(readings_case(_SUITE), "all results were right"),
        Quiet(readings_case(absent={"collectives": "one process"}), "nothing was run"),
    ),
}
