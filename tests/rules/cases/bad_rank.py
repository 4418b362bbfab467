"""The cases of bad-rank."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_SEARCH = read("links.search", ranks=4, rounds=3, tests=20, is_complete=True)

CASES = {
    "bad-rank": (
        Fires(
            readings_case(_SEARCH, read("links.bad_rank 2", rank=2, failed_tests="0 2; 1 2", reason="wrong sum")), (2,)
        ),
        Fires(
            readings_case(_SEARCH, read("links.bad_link 0-1", rank=0, failed_tests="0 1", reason="timed out")), (0, 1)
        ),
        Fires(readings_case(_SEARCH, read("links.stuck 3", rank=3, rounds=2)), (3,)),
        Quiet(readings_case(_SEARCH), "every group was right"),
        Quiet(
            readings_case(
                _SEARCH, read("links.undecided 0-1", rank=0, why="the two failed together, perhaps by chance")
            ),
            "nothing is established",
        ),
    ),
}
