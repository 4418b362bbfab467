"""The cases of little-memory."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

_GB = 1_000_000_000

CASES = {
    "little-memory": (
        Fires(
            readings_case(
                read("machine.memory", total_bytes=512 * _GB, available_bytes=300 * _GB, left_bytes=1 * _GB),
                read("setup.job here", ranks_per_node=8, world_size=8, workers=4),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.memory", total_bytes=512 * _GB, available_bytes=300 * _GB, left_bytes=300 * _GB),
                read("setup.job plan", ranks_per_node=8, workers=8, batch_bytes=_GB, memory_bytes=100 * _GB),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.memory", total_bytes=8 * _GB, available_bytes=2 * _GB, left_bytes=2 * _GB),
                read("setup.job here", ranks_per_node=1, world_size=1),
            ),
            "a laptop, and one process",
        ),
    ),
}
