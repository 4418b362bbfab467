"""The cases of bad-link."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_SEARCH = read("links.search", ranks=4, rounds=3, tests=20, is_complete=True)

CASES = {
    "bad-link": (
        Fires(
            readings_case(_SEARCH, read("links.bad_link 1-3", rank=1, failed_tests="1 3; 1 3", reason="timed out")),
            (1, 3),
        ),
        Quiet(readings_case(_SEARCH), "every group was right"),
        Quiet(
            readings_case(
                _SEARCH, read("links.undecided 0-1", rank=0, why="the two failed together, perhaps by chance")
            ),
            "nothing is established",
        ),
    ),
}
