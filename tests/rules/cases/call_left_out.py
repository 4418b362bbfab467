"""The cases of call-left-out."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet, pending

_SOURCE = """\
def main():
    for inputs in loader:
        if finite(loss):
            backward(loss)
        exchange(border)
        agree(loss)
"""

_ROUND = ["all_reduce[5]@main:4", "all_gather[1]@main:6"]

_SKIPPED_BY_1 = {0: [*_ROUND, "all_reduce[5]@main:4 !"], 1: _ROUND, 2: [*_ROUND, "all_reduce[5]@main:4 !"]}

_HERE, _THERE = "main:4>~comm", "main:5>~comm"

_EXCHANGE = [pending("isend", peer=2, where="main:5"), pending("recv", peer=0, where="main:5")]

CASES = {
    "call-left-out": (
        Fires(
            make_case(
                _SKIPPED_BY_1,
                world=3,
                source=_SOURCE,
                stacks={0: _HERE, 1: _THERE, 2: _HERE},
                pending={1: _EXCHANGE},
            ),
            (1,),
            3,
        ),
        Quiet(
            make_case(
                {0: ["all_reduce[5]@main:4 !"], 1: []},
                world=2,
                source=_SOURCE,
                stacks={0: _HERE, 1: _THERE},
                pending={1: [pending("recv", peer=0, where="main:5")]},
            ),
            "one of two, in the first round: the call may be one that the other alone makes",
        ),
        Quiet(
            make_case(
                _SKIPPED_BY_1,
                world=3,
                source=_SOURCE.replace("        exchange", "        else:\n            exchange"),
                stacks={0: _HERE, 1: "main:6>~comm", 2: _HERE},
                pending={1: [pending("recv", peer=0, where="main:6")]},
            ),
            "the lines are the two branches of one condition: neither is behind the other",
        ),
        Quiet(
            make_case(
                _SKIPPED_BY_1,
                world=3,
                source=_SOURCE,
                stacks={0: _HERE, 1: _THERE, 2: _HERE},
            ),
            "a rank that is late waits for nobody",
        ),
    ),
}
