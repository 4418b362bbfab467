"""The cases of device-occupied."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "device-occupied": (
        Fires(
            readings_case(
                read("devices.device GPU 1", uuid="GPU-1", memory_bytes=80 << 30, used_bytes=9 << 30),
                read("devices.process GPU 1", uuid="GPU-1", index=1, pid=4711, used_bytes=9 << 30, command="python"),
                read("devices.visible", rank=1, own="GPU-1", present=2),
            ),
            (1,),
        ),
        Fires(readings_case(read("devices.device GPU 0", memory_bytes=80 << 30, used_bytes=70 << 30)), (0,)),
        Fires(
            readings_case(
                read("devices.device GPU 0", compute_mode="prohibited", memory_bytes=80 << 30, used_bytes=0),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read(
                    "devices.device GPU 0",
                    uuid="GPU-0",
                    memory_bytes=8 << 30,
                    used_bytes=2 << 30,
                    compute_mode="default",
                ),
                read(
                    "devices.process GPU 0", uuid="GPU-0", index=0, pid=99, used_bytes=40 << 20, command="gnome-shell"
                ),
                read(
                    "devices.device GPU 1",
                    uuid="GPU-1",
                    memory_bytes=8 << 30,
                    used_bytes=1 << 20,
                    compute_mode="exclusive process",
                ),
            ),
            "a desktop, and a device that is free",
        ),
    ),
}
