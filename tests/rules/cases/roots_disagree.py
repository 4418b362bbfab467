"""The cases of roots-disagree."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.model import Frame, ProcessState
from unhang.testing import Fires, Quiet

_ROUND = ["all_reduce[8]@main:9", "broadcast[1]@main:10"]

_OPEN = ["all_reduce[8]@main:9", "broadcast[1]@main:10 !"]

_TWO_STAY = {0: _OPEN, 1: _OPEN, 2: [*_ROUND, "all_reduce[4]@main:11 !"]}

_HERE = dict.fromkeys((0, 1), "main:10>~comm")

_CALLED = Frame("/site-packages/torch/distributed/distributed_c10d.py", 3151, "broadcast")


def _names_root(src: int) -> dict[str, object]:
    """A rank in a broadcast whose root is known, for examples."""
    return {"variables": ((_CALLED, "src", str(src)),)}


CASES = {
    "roots-disagree": (
        Fires(
            make_case(
                _TWO_STAY,
                world=3,
                hang="suspected",
                stacks={**_HERE, 2: "main:11>~comm"},
            ),
            (),
            10,
        ),
        Fires(
            make_case(
                {0: _OPEN, 1: _OPEN, 2: _OPEN, 3: [*_ROUND, "all_reduce[4]@main:11 !"]},
                hang="suspected",
                stacks={**_HERE, 2: "main:10>~comm", 3: "main:11>~comm"},
                more={0: _names_root(0), 1: _names_root(1), 2: _names_root(0)},
            ),
            (1,),
            10,
        ),
        Quiet(
            make_case(
                {0: _OPEN, 1: _ROUND[:1], 2: [*_ROUND, "all_reduce[4]@main:11 !"]},
                world=3,
                hang="suspected",
                stacks={0: "main:10>~comm", 1: "main:9>work:4", 2: "main:11>~comm"},
            ),
            "a member has not come yet",
        ),
        Quiet(
            make_case(
                _TWO_STAY,
                world=3,
                hang="suspected",
                stacks={**_HERE, 2: "main:11>~comm"},
                states={0: ProcessState("S", 0.4), 1: ProcessState("S", 0.4)},
            ),
            "a large tensor is under way",
        ),
        Quiet(
            make_case(
                _TWO_STAY,
                world=3,
                hang="suspected",
                stacks={**_HERE, 2: "main:11>~comm"},
                states={1: ProcessState("T", 0.0)},
            ),
            "one of them is stopped",
        ),
    ),
}
