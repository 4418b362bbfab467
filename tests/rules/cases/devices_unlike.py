"""The cases of devices-unlike."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "devices-unlike": (
        Fires(
            readings_case(
                [read("devices.visible", rank=r, present=7 if r == 2 else 8, local_rank=0) for r in (0, 2, 4)],
                read("devices.device GPU 0", name="H100"),
                world=6,
            ),
            (2,),
        ),
        Fires(
            readings_case(
                [
                    read(
                        "devices.device GPU 0",
                        rank=r,
                        uuid=f"GPU-{r}",
                        name="A100" if r == 4 else "H100",
                        memory_bytes=80 << 30,
                    )
                    for r in (0, 2, 4)
                ],
                [read("devices.visible", rank=r, own=f"GPU-{r}", present=1, local_rank=0) for r in (0, 2, 4)],
                world=6,
            ),
            (4,),
        ),
        Quiet(
            readings_case(
                [
                    read("devices.device GPU 0", rank=r, uuid=f"GPU-{r}", name="H100", memory_bytes=80 << 30)
                    for r in (0, 2)
                ],
                [read("devices.visible", rank=r, present=8 - r, local_rank=0) for r in (0, 2)],
            ),
            "of two hosts nobody knows which is the odd one",
        ),
    ),
}
