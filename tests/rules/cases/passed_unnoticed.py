"""The cases of passed-unnoticed."""

from __future__ import annotations

from functools import partial

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

SIZE = "size-mismatch"
_SAME = "all_reduce[8]@main:10"
ended = partial(make_case, backend="nccl", hang=None, exit_code=0)


def one_odd(odd: str, others: str, rank: int = 2) -> dict[int, list[str]]:
    return {r: [_SAME, odd if r == rank else others, _SAME] for r in range(4)}


CASES = {
    "passed-unnoticed": (
        Fires(ended(one_odd("all_reduce[24]@main:11", "all_reduce[8]@main:11")), (2,), 11, SIZE),
        Fires(ended(one_odd("all_reduce[8]@main:11", "all_gather[8]@main:12")), (2,), 11),
        Fires(ended(one_odd("all_reduce[8] Half@main:11", "all_reduce[8] Float@main:11")), (2,), 11, SIZE),
        Fires(ended({r: [_SAME, f"all_reduce[{8 + r // 2}]@main:11"] for r in range(4)}), (), 11, SIZE),
        Quiet(ended(one_odd(_SAME, _SAME)), "the calls agree"),
        Quiet(ended(one_odd("all_to_all[3]@main:11", "all_to_all[8]@main:11")), "parts may be uneven"),
        Quiet(
            ended(one_odd("all_gather[3]@main:11", "all_gather[8]@main:11")), "a list of tensors may be of any sizes"
        ),
        Quiet(ended(one_odd("coalesced[3]@main:11", "all_reduce[8]@main:11")), "a batch is the rank's own matter"),
        Quiet(
            ended(one_odd("all_reduce[24]@main:11", "all_reduce[8]@main:11"), backend="gloo"),
            "gloo raises where sizes differ",
        ),
        Quiet(
            make_case(
                {r: [_SAME, f"all_reduce[{9 if r else 8}]@main:11", "barrier@main:12 !"] for r in range(3)}
                | {3: [_SAME, "all_reduce[9]@main:11"]},
                backend="nccl",
            ),
            "the job hangs: that is told first",
        ),
    ),
}
