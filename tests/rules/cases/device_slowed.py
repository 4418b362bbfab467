"""The cases of device-slowed."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "device-slowed": (
        Fires(
            readings_case(
                read("devices.device GPU 0", uuid="GPU-a0", slowdowns="", temperature_c=34, slowdown_at_c=87),
                read(
                    "devices.device GPU 1", uuid="GPU-a1", slowdowns="power brake", temperature_c=36, slowdown_at_c=87
                ),
                read("devices.visible", rank=1, own="GPU-a1", count=2, present=2),
            ),
            (1,),
        ),
        Fires(readings_case(read("devices.device GPU 0", slowdowns="", temperature_c=88, slowdown_at_c=87)), (0,)),
        Quiet(
            readings_case(
                read("devices.device GPU 0", slowdowns="", temperature_c=64, slowdown_at_c=87, clock_mhz=210),
                read("devices.device GPU 1", temperature_c=60),
            ),
            "the low clock of an idle device",
        ),
    ),
}
