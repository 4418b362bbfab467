"""The cases of shared-device."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "shared-device": (
        Fires(
            readings_case(
                [
                    read("devices.visible", rank=r, value="0", count=1, present=2, own="GPU-0", local_rank=r)
                    for r in (0, 1)
                ]
            ),
            (0, 1),
        ),
        Fires(
            readings_case(
                read(
                    "devices.visible",
                    rank=0,
                    value="0,1",
                    count=2,
                    present=2,
                    uuids="GPU-0 GPU-1",
                    own="GPU-0",
                    local_rank=0,
                ),
                read(
                    "devices.visible",
                    rank=1,
                    value="1,0",
                    count=2,
                    present=2,
                    uuids="GPU-0 GPU-1",
                    own="GPU-0",
                    local_rank=1,
                ),
            ),
            (0, 1),
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, own="GPU-0", host=f"node{r}") for r in (0, 1)]
            ),
            "names that are equal on different hosts",
        ),
        Quiet(
            readings_case(
                [read("devices.visible", rank=r, count=1, present=1, own="GPU-0", backend="gloo") for r in (0, 1)]
            ),
            "a job without devices",
        ),
    ),
}
