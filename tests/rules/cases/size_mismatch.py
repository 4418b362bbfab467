"""The cases of size-mismatch."""

from __future__ import annotations

from tests.rules.notation import Later, make_case
from unhang.testing import Fires, Quiet

_LAYERS = ["all_reduce[2]@main:9", "all_reduce[7]@main:9", "all_reduce[3]@main:9", "all_reduce[5]@main:9"]


def _gathers(mine: str, theirs: str) -> Later:
    """Rank 3 gives `mine`; what differs behind the first dimension is the length of what each rank holds."""
    calls = {r: [f"all_gather[{mine if r == 3 else theirs}] Long@main:20 !"] for r in range(4)}
    return make_case(calls)


def _turns(mine: int, over: str = "order") -> Later:
    """A loop over three items with calls of their sizes, in the same turns before; then rank 0 is at another item than the others."""
    source = f"def main():\n    for item in {over}:\n        step(item)\n"
    before = [f"all_reduce[{n}]@main:3" for n in (2, 7, 3)] * 4
    calls = {r: [*before, f"all_reduce[{7 if r else mine}]@main:3 !"] for r in range(4)}
    return make_case(calls, source=source)


CASES = {
    "size-mismatch": (
        Fires(_turns(3), (), 2, "collective-order-race"),
        Fires(_turns(8), (0,), 3),
        Fires(_turns(3, "train_loader"), (0,), 3),
        Fires(
            make_case(
                {
                    3: ["all_gather[7x64] Float@main:20 !"],
                    **{r: ["all_gather[10x64] Float@main:20 !"] for r in range(3)},
                }
            ),
            (3,),
            20,
        ),
        Fires(_gathers("4x11", "4x12"), (), 20),
        Fires(_gathers("3x12", "4x12"), (3,), 20),
        Fires(
            make_case({1: ["all_reduce[4] Half@main:9 !"], **{r: ["all_reduce[4] Float@main:9 !"] for r in (0, 2, 3)}}),
            (1,),
            9,
        ),
        Quiet(
            make_case(
                {
                    r: [*_LAYERS, *_LAYERS, "all_reduce[2]@main:9", f"all_reduce[{7 if r else 3}]@main:9 !"]
                    for r in range(4)
                }
            ),
            "the size of the next call, as the past foretells it: a call was left out",
        ),
        Fires(
            make_case(
                {
                    r: [*_LAYERS, *_LAYERS, "all_reduce[2]@main:9", f"all_reduce[{7 if r else 8}]@main:9 !"]
                    for r in range(4)
                }
            ),
            (0,),
            9,
        ),
        Fires(
            make_case(
                {1: [_LAYERS[0], "all_reduce[1] !"], **{r: [_LAYERS[0], f"{_LAYERS[1]}>~comm !"] for r in (0, 2, 3)}},
                stacks={1: "main:9>~comm"},
            ),
            (1,),
            9,
        ),
        Quiet(
            make_case(
                {0: ["all_gather[8]@main:9", "all_gather[1]@main:9 thread=second !"]}
                | {r: ["all_gather[8]@main:9", "all_gather[9]@main:9 !"] for r in (1, 2, 3)}
            ),
            "a second thread came in between",
        ),
        Quiet(
            make_case(
                {r: [f"all_to_all_single[{8 + r}]@main:20", "barrier@main:21 !"] for r in range(3)}
                | {3: ["all_to_all_single[1]@main:20"]}
            ),
            "all_to_all may be uneven",
        ),
    ),
}
