"""The cases of ras-crossed: answers of `ncclras`."""

from __future__ import annotations

from tests.rules.cases.ras import at, counts, report
from tests.rules.notation import Later, log_case
from unhang.testing import Fires, Quiet

_LESS = "  {} ranks have launched up to operation {}\n"


def crossed(gathers: str, reduces: str) -> Later:
    """Two operations of one communicator whose counts differ."""
    first = counts(gathers, operation="AllGather")
    return log_case(report("MISMATCH", warnings=first + counts(reduces).partition("MISMATCH\n")[2]))


_NONE, _ONE_LESS = at(5, " has not launched any operations"), at(5, " has launched up to operation 29")
_ONE_MORE = at(5, " has launched up to operation 30")

CASES = {
    "ras-crossed": (
        Fires(crossed(_LESS.format(7, 1) + _NONE, _LESS.format(7, 29) + _ONE_MORE), (5,)),
        Fires(crossed(_LESS.format(6, 7) + _LESS.format(2, 6) + at(1) + at(5), _LESS.format(6, 29) + _LESS.format(2, 33) + at(1) + at(5)), (1, 5)),
        Quiet(
            crossed(_LESS.format(7, 1) + _NONE, _LESS.format(7, 30) + _ONE_LESS),
            "it is behind in everything: it may be late",
        ),
        Quiet(
            crossed(_LESS.format(4, 1) + _LESS.format(4, 2), _LESS.format(4, 30) + _LESS.format(4, 29)),
            "half of the ranks: either half may be the odd one",
        ),
        Quiet(
            crossed(_LESS.format(7, 1) + at(2, " has not launched any operations"), _LESS.format(7, 29) + _ONE_MORE),
            "another rank is behind than is ahead",
        ),
    ),
}  # fmt: skip
