"""The cases of descriptor-limit."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "descriptor-limit": (
        Fires(
            readings_case(
                read("machine.limit nofile", soft=128, hard=4096, open=6),
                read("setup.job here", ranks_per_node=1, workers=16, world_size=2),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("machine.limit nofile", soft=1 << 20, hard=1 << 20, open=6),
                read("setup.job plan", ranks_per_node=8, world_size=2048, workers=8, nofile=1024),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.limit nofile", soft=1024, hard=4096, open=6),
                read("setup.job here", ranks_per_node=8, workers=8, world_size=16),
            ),
            "the usual limit is enough for two nodes",
        ),
    ),
}
