"""The cases of driver-silent."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "driver-silent": (
        Fires(
            readings_case(
                read(
                    "devices.driver nvidia", rank=2, problem="it does not answer: no answer within 20 s", is_silent=True
                )
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read(
                    "devices.driver nvidia",
                    problem="RM has detected an NVML/RM version mismatch.",
                    is_mismatch=True,
                )
            ),
            (0,),
        ),
        Quiet(readings_case(read("devices.driver nvidia", version="580.95.05", cuda="13.0", count=8)), "it answers"),
        Quiet(readings_case(absent={"devices": "NVML: Driver Not Loaded"}), "there is no device"),
    ),
}
