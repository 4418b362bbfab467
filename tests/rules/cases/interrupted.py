"""The cases of interrupted."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_WAIT = {1: ["all_reduce[8]@main:10 !"]}

_STACKS = {0: "main:8", 1: "main:10>~comm"}

CASES = {
    "interrupted": (
        Fires(make_case(_WAIT, world=2, hang=None, stacks=_STACKS, exit_code=130, interrupted_by="SIGINT"), ()),
        Quiet(make_case(_WAIT, world=2, hang=None, stacks=_STACKS, exit_code=1), "it failed by itself"),
    ),
}
