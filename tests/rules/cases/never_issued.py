"""The cases of never-issued."""

from __future__ import annotations

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_OPEN = "all_reduce[8]@main:10 !"

_DONE = "all_reduce[8]@main:10"

CASES = {
    "never-issued": (
        Fires(make_case({1: [_DONE], **{r: [_DONE, _OPEN] for r in (0, 2, 3)}}), (1,), 10),
        Quiet(
            make_case({1: [_DONE], **{r: [_DONE, _OPEN] for r in (0, 2, 3)}}, hang=None),
            "a job that runs: some rank is always waiting",
        ),
        Quiet(
            make_case({r: [_DONE, _OPEN] for r in range(4)}),
            "everybody has issued the call",
        ),
        Quiet(
            make_case(
                {1: [_DONE], **{r: [_DONE, _OPEN] for r in (0, 2, 3)}},
                stacks={1: "main:8>load:33>~lock", **dict.fromkeys((0, 2, 3), "main:10>~comm")},
            ),
            "a stack tells more",
        ),
    ),
}
