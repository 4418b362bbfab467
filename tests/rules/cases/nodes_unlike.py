"""The cases of nodes-unlike."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "nodes-unlike": (
        Fires(
            readings_case(
                *[read("machine.memory", rank=r, total_bytes=(500 if r == 4 else 1000) << 30) for r in (0, 2, 4, 6)],
                *[read("machine.cores", rank=r, cpus="0-63", count=64, online=64) for r in (0, 2, 4, 6)],
                world=8,
            ),
            (4,),
        ),
        Quiet(
            readings_case(
                *[read("machine.memory", rank=r, total_bytes=(500 + r) << 30) for r in (0, 2, 4)],
                *[read("machine.cores", rank=r, cpus="0-63", count=64, online=64) for r in (0, 2, 4)],
                world=6,
            ),
            "as good as equal",
        ),
    ),
}
