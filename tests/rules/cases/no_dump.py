"""The cases of no-dump."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_OPEN = ["all_reduce[8]@main:10", "all_reduce[8]@main:10 !"]

CASES = {
    "no-dump": (
        Fires(make_case(dict.fromkeys((0, 1, 3), _OPEN), absent=[2]), (2,)),
        Quiet(
            make_case({**dict.fromkeys((0, 1, 3), _OPEN), 2: _OPEN[:1]}),
            "a rank whose dump can be read explains itself",
        ),
        Quiet(
            make_case({0: _OPEN, 1: ["all_reduce[8]@main:10"]}, absent=[2, 3]),
            "a rank whose dump shows that it has stopped explains the wait",
        ),
        Quiet(make_case(dict.fromkeys((0, 1, 3), _OPEN[:1]), absent=[2], hang=None), "nobody waits"),
        Quiet(
            make_case(dict.fromkeys((0, 1, 2), _OPEN), out_of_sight=[3]),
            "a rank of another node, of which no report was given",
        ),
    ),
}
