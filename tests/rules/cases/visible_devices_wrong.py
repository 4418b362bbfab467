"""The cases of visible-devices-wrong."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "visible-devices-wrong": (
        Fires(
            readings_case(
                read(
                    "devices.visible",
                    rank=1,
                    variable="CUDA_VISIBLE_DEVICES",
                    value="0,9",
                    count=1,
                    present=8,
                    problem="there is no device '9' among 8",
                    own="GPU-0",
                )
            ),
            (1,),
        ),
        Quiet(
            readings_case(
                read("devices.visible", variable="CUDA_VISIBLE_DEVICES", value="3,1", count=2, present=8, own="GPU-3")
            ),
            "another order is a choice",
        ),
        Quiet(
            readings_case(
                read("devices.visible", variable="CUDA_VISIBLE_DEVICES", value="", count=0, present=8, is_hidden=True)
            ),
            "devices are hidden on purpose",
        ),
    ),
}
