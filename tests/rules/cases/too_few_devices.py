"""The cases of too-few-devices."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "too-few-devices": (
        Fires(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, local_rank=r, own="GPU-0") for r in (0,)],
                read("setup.job plan", ranks_per_node=8, gpus_per_node=8, world_size=32),
            ),
            (0,),
        ),
        Fires(
            readings_case(
                [
                    read(
                        "devices.visible",
                        rank=r,
                        count=2,
                        present=2,
                        local_rank=r,
                        host="node0",
                        own=f"GPU-{r}" if r < 2 else None,
                    )
                    for r in range(4)
                ],
                read("setup.job here", ranks_per_node=4, world_size=4),
            ),
            (2, 3),
        ),
        Fires(
            readings_case(
                read("devices.visible", rank=0, count=8, present=8, local_rank=0, own="GPU-0"),
                read("devices.visible", rank=1, count=0, present=8, local_rank=1, is_hidden=True),
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            (1,),
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, local_rank=r, own=f"GPU-{r}") for r in range(2)],
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            "each rank is given a device of its own",
        ),
        Quiet(
            readings_case(
                [
                    read("devices.visible", rank=r, count=1, present=1, local_rank=r, own="GPU-0", backend="gloo")
                    for r in range(2)
                ],
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            "a job without devices",
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=0, present=1, local_rank=r, is_hidden=True) for r in range(2)],
                read("setup.job here", ranks_per_node=2, world_size=2),
            ),
            "all devices are hidden from all ranks: the job is meant to run without",
        ),
    ),
}
