"""The cases of nvlink-down."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "nvlink-down": (
        Fires(
            readings_case(
                [
                    read(f"devices.device GPU {i}", uuid=f"GPU-{i}", name="H100", nvlinks_up=18 - 2 * (i == 3))
                    for i in range(4)
                ],
                [read("devices.visible", rank=r, own=f"GPU-{r}", host="node0", present=4) for r in range(4)],
            ),
            (3,),
        ),
        Fires(readings_case(read("devices.device GPU 0", name="A100", nvlinks_up=12, nvlink_recoveries=4)), (0,)),
        Quiet(
            readings_case(
                [read(f"devices.device GPU {i}", uuid=f"GPU-{i}", name="A100 PCIe", nvlinks_up=0) for i in range(4)],
                read("devices.device GPU 4", uuid="GPU-4", name="H100", nvlinks_up=18, nvlink_recoveries=0),
            ),
            "cards without a bridge, beside another model",
        ),
    ),
}
