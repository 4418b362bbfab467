"""The cases of fabric-not-ready."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "fabric-not-ready": (
        Fires(
            readings_case(
                read("devices.device GPU 0", uuid="GPU-0", rank=2, fabric="in progress", fabric_error=0),
                read("devices.visible", rank=2, own="GPU-0", present=1),
            ),
            (2,),
        ),
        Fires(readings_case(read("devices.device GPU 0", fabric="completed", fabric_error=999)), (0,)),
        Quiet(
            readings_case(
                read("devices.device GPU 0", uuid="GPU-0", fabric="completed", fabric_error=0),
                read("devices.device GPU 1", uuid="GPU-1", fabric="not supported", fabric_error=0),
                read("devices.device GPU 2", uuid="GPU-2"),
            ),
            "set up, or a machine without NVSwitches",
        ),
    ),
}
