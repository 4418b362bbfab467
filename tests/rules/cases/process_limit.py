"""The cases of process-limit."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "process-limit": (
        Fires(
            readings_case(
                read("machine.processes", count_in_group=20, most_in_group=100, count=400, most_on_machine=32768),
                read("setup.job here", ranks_per_node=8, workers=8, world_size=8),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read(
                    "machine.processes", own_count=300, user_limit=400, is_exempt=True, most_on_machine=32768, count=600
                ),
                read("setup.job here", ranks_per_node=8, workers=8, world_size=8),
            ),
            "root is not bound by the limit of a user",
        ),
        Quiet(
            readings_case(
                read("machine.processes", own_count=1500, user_limit=8000, count=2000, most_on_machine=32768),
                read("setup.job here", ranks_per_node=1),
            ),
            "a desktop",
        ),
    ),
}
