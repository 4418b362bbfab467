"""The cases of store-out-of-reach."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "store-out-of-reach": (
        Fires(
            readings_case(
                read("setup.job here", nodes=2, ranks_per_node=2),
                read(
                    "party.unreachable node0:29500", rank=1, is_holder=False, reason="cannot reach the store: timed out"
                ),
            ),
            (1,),
        ),
        Quiet(readings_case(read("setup.job here", nodes=1, ranks_per_node=1)), "one process needs no store"),
    ),
}
