"""The cases of collective-order-race."""

from __future__ import annotations

from tests.rules.notation import Later, make_case
from unhang.testing import Fires, Quiet

_PAIRS = {"a": (0, 1), "b": (0, 1)}

_MEAN, _COLLECT = "all_reduce[8]@main:5>mean:21", "all_gather[3]@run:48>collect:27"

_SAVES = """def main():
    if dist.get_rank() == 0:
        save(state, group=background)
    loss.backward()
"""


def _alone(*earlier: str) -> Later:
    """Rank 0 waits in a call of a second group, under a condition on its rank; `earlier`: what the other rank made of that group."""
    return make_case(
        {0: [*earlier, "b/all_gather[1]@main:3 !"], 1: [*earlier, "a/all_reduce[4]@main:4 !"]},
        world=2,
        groups=_PAIRS,
        source=_SAVES,
        stacks={0: "main:3>~comm", 1: "main:4>~comm"},
    )


CASES = {
    "collective-order-race": (
        Fires(
            make_case(
                {0: ["a/all_reduce[4]@main:5 !"], 1: ["b/all_reduce[4]@main:8 !"]},
                world=2,
                groups=_PAIRS,
                stacks={0: "main:5>~comm", 1: "main:8>~comm"},
            ),
            (0, 1),
            None,
        ),
        Fires(
            make_case({0: [_MEAN, _COLLECT, f"{_COLLECT} !"], 1: [_MEAN, _COLLECT, f"{_MEAN} !"]}, world=2),
            (0, 1),
            21,
        ),
        Fires(_alone(), (0,), 3, cause="code-divergence"),
        Fires(_alone("b/all_gather[1]@main:4"), (0, 1), None),
        Quiet(
            make_case({0: [_MEAN, f"{_COLLECT} !"], 1: [_MEAN, f"{_MEAN} !"]}, world=2),
            "only one rank is known to use the group from two threads",
        ),
        Quiet(
            make_case({0: ["a/all_reduce[4]@main:5 !"], 1: ["b/all_reduce[4]@main:8"]}, world=2, groups=_PAIRS),
            "a rank that is merely late closes no cycle",
        ),
        Quiet(
            make_case(
                {
                    0: ["all_reduce[8]@main:10 thread=pt_autograd_0", "barrier@main:11 !"],
                    1: ["all_reduce[8]@main:10", "barrier@main:11 !"],
                },
                world=2,
            ),
            "backward issues its calls from autograd's thread",
        ),
    ),
}
