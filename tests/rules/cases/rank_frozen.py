"""The cases of rank-frozen."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.model import ProcessState
from unhang.testing import Fires, Quiet

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 1, 2)}

_COMM = dict.fromkeys((0, 1, 2), "main:10>~comm")

CASES = {
    "rank-frozen": (
        Fires(
            make_case(
                _WAIT, hang="suspected", stacks={**_COMM, 3: "main:10>hook:4"}, states={3: ProcessState("T", 0.0)}
            ),
            (3,),
            4,
        ),
        Quiet(
            make_case(
                _WAIT, hang="suspected", stacks={**_COMM, 3: "main:10>hook:4"}, states={3: ProcessState("S", 0.0)}
            ),
            "asleep is not frozen",
        ),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10"] for r in range(4)},
                hang=None,
                states={r: ProcessState("T") for r in range(4)},
            ),
            "the user stopped the whole job (Ctrl-Z)",
        ),
    ),
}
