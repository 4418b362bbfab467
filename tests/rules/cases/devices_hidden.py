"""The cases of devices-hidden."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "devices-hidden": (
        Fires(
            readings_case(
                [
                    read(
                        "devices.visible",
                        rank=r,
                        variable="CUDA_VISIBLE_DEVICES",
                        value=str(r),
                        count=1,
                        present=2,
                        own=f"GPU-{r}",
                    )
                    for r in (0, 1)
                ]
            ),
            (0, 1),
        ),
        Quiet(
            readings_case([read("devices.visible", rank=r, count=2, present=2, own=f"GPU-{r}") for r in (0, 1)]),
            "all see all",
        ),
        Quiet(
            readings_case(
                [
                    read("devices.visible", rank=r, value="0", count=1, present=2, own=f"GPU-{r}", host=f"node{r}")
                    for r in (0, 1)
                ]
            ),
            "one rank on each host",
        ),
    ),
}
