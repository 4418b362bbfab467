"""The cases of debug-level-differs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.rules.notation import Later, make_case
from unhang.model import Frame, RankIdentity, ThreadStack
from unhang.testing import Fires, Quiet

_TORCH = "/site-packages/torch/distributed/distributed_c10d.py"
_HELPER = (
    Frame(_TORCH, 5456, "_create_process_group_wrapper"),
    Frame(_TORCH, 1800, "init_process_group"),
    Frame("train.py", 18, "setup"),
)
_PAST = (Frame(_TORCH, 3245, "all_gather"), Frame("train.py", 54, "main"))


def _two_nodes(detailed: Collection[int], in_helper: Collection[int]) -> Later:
    """Ranks of which some have the level DETAIL, and some stand where the helper group is made."""
    more: dict[int, dict[str, Any]] = {
        r: {
            "identity": RankIdentity(r, 4, variables={"TORCH_DISTRIBUTED_DEBUG": "detail"} if r in detailed else {}),
            "stacks": (ThreadStack("MainThread", _HELPER if r in in_helper else _PAST, is_main=True),),
        }
        for r in range(4)
    }
    return make_case(
        {r: ["all_gather[8]@main:54 !"] for r in range(4) if r not in in_helper}, world=4, hang="suspected", more=more
    )


CASES = {
    "debug-level-differs": (
        Fires(_two_nodes((2, 3), (2, 3)), (2, 3), 18),
        Quiet(_two_nodes(range(4), (2, 3)), "all ranks have it"),
        Quiet(_two_nodes((2, 3), ()), "no rank stands where the helper group is made"),
    ),
}
