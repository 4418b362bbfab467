"""The cases of unlike-values and unlike-values-before."""

from __future__ import annotations

from functools import partial

from tests.rules.notation import make_case
from unhang.testing import Fires, Quiet

_SAME = "all_reduce[8] by SUM@main:10"
ended = partial(make_case, hang=None, exit_code=0)


def one_odd(odd: str, others: str, rank: int = 2, last: str = _SAME) -> dict[int, list[str]]:
    return {r: [_SAME, odd if r == rank else others, last] for r in range(4)}


_MAX, _SUM, _NOT_KNOWN = (f"all_reduce[8]{how}@main:11" for how in (" by MAX", " by SUM", ""))


def hangs(odd: str) -> dict[int, list[str]]:
    return one_odd(odd, _SUM) | {
        r: [*one_odd(odd, _SUM)[r], "barrier@main:20 !" if r == 2 else "all_reduce[4]@main:30 !"] for r in range(4)
    }


CASES = {
    "unlike-values": (
        Fires(ended(one_odd(_MAX, _SUM)), (2,), 11),
        Fires(ended(one_odd(_MAX, _SUM), backend="nccl"), (2,), 11),
        Fires(ended(one_odd("broadcast[8] root 2@main:11", "broadcast[8] root 0@main:11")), (2,), 11),
        Fires(ended(one_odd("all_reduce[8] Int@main:11", "all_reduce[8] Float@main:11")), (2,), 11),
        Fires(ended({r: [_SAME, _MAX if r < 2 else _SUM] for r in range(4)}), (), 11),
        Fires(ended({r: [(_MAX, _SUM, _NOT_KNOWN, _NOT_KNOWN)[r]] for r in range(4)}), (), 11),
        Quiet(ended(one_odd(_SUM, _SUM)), "all ranks reduce by the same operation"),
        Quiet(
            ended(
                {r: [_SAME, f"{'ab'[r // 2]}/all_reduce[8] by {('MAX', 'SUM')[r // 2]}@main:11"] for r in range(4)},
                groups={"a": (0, 1), "b": (2, 3)},
            ),
            "two groups, each with its own operation",
        ),
        Quiet(ended(one_odd(_MAX, _NOT_KNOWN)), "of the others the operation is not known"),
        Quiet(
            ended(one_odd("reduce[8] by MAX@main:11", _SUM), backend="nccl"),
            "the calls differ, too: that is told elsewhere",
        ),
        Quiet(
            ended(one_odd("all_reduce[8] Double@main:11", "all_reduce[8] Float@main:11")),
            "the types differ in length: gloo raises",
        ),
        Quiet(ended(one_odd(f"{_MAX} !", _SUM)), "a member has not completed it"),
        Quiet(make_case(hangs(_MAX)), "the job hangs, and the paths do not part there"),
    ),
    "unlike-values-before": (
        Fires(ended(one_odd(_MAX, _SUM), exit_code=1), (), 11),
        Quiet(ended(one_odd(_MAX, _SUM)), "the job ended well: there it is no remark"),
        Quiet(make_case(hangs(_SUM)), "all ranks reduce by the same operation"),
    ),
}
