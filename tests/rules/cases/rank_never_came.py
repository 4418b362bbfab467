"""The cases of rank-never-came."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "rank-never-came": (
        Fires(
            readings_case(
                read("party.size", expected=4, came=3),
                read("party.missing 2", rank=2, reason="never came: nothing from it within 30 s"),
            ),
            (2,),
        ),
        Quiet(readings_case(read("party.size", expected=4, came=4)), "all came"),
        Quiet(readings_case(absent={"party": "one process"}), "nobody else was expected"),
    ),
}
