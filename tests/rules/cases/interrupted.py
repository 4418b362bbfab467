"""The cases of interrupted."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet, ended

_WAIT = {1: ["all_reduce[8]@main:10 !"]}

_STACKS = {0: "main:8", 1: "main:10>~comm"}

CASES = {
    "interrupted": (
        Fires(make_case(_WAIT, world=2, hang=None, stacks=_STACKS, exit_code=130, interrupted_by="SIGINT"), ()),
        Fires(
            make_case(
                _WAIT,
                world=2,
                hang=None,
                stacks=_STACKS,
                exit_code=130,
                interrupted_by="SIGINT",
                errors={0: "KeyboardInterrupt: @main:8", 1: "KeyboardInterrupt: @main:8"},
                exits={0: ended("signal", -15, at_s=10.1), 1: ended("signal", -15, at_s=10.2)},
            ),
            (),
        ),
        Quiet(make_case(_WAIT, world=2, hang=None, stacks=_STACKS, exit_code=1), "it failed by itself"),
        Quiet(
            make_case(
                _WAIT,
                world=2,
                hang=None,
                stacks=_STACKS,
                exit_code=1,
                interrupted_by="SIGINT",
                errors={0: "ValueError: bad@main:8", 1: "KeyboardInterrupt: @main:8"},
            ),
            "a rank had failed by itself",
        ),
    ),
}
