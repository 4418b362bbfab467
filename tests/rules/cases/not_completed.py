"""The cases of not-completed."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_OPEN, _DONE = "all_reduce[8]@main:10 !", "all_reduce[8]@main:10"

CASES = {
    "not-completed": (
        Fires(make_case({r: [_DONE, _OPEN] for r in range(4)}, backend="nccl"), ()),
        Fires(make_case({r: [_DONE, _DONE if r != 2 else _OPEN] for r in range(4)}, backend="nccl"), (2,)),
        Quiet(make_case({r: [_OPEN] for r in range(4)}, backend="nccl", hang=None), "a job that runs"),
        Quiet(
            make_case({r: [_OPEN] for r in (0, 1, 3)} | {2: ["barrier@main:11 !"]}, backend="nccl"),
            "a member made another call",
        ),
    ),
}
