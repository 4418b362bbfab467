"""The cases of device-unhealthy."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "device-unhealthy": (
        Fires(
            readings_case(
                read(
                    "devices.device GPU 0", uuid="GPU-a0", name="H100", ecc_uncorrected=0, rows_pending=0, rows_failed=0
                ),
                read(
                    "devices.device GPU 1", uuid="GPU-a1", name="H100", ecc_uncorrected=3, rows_pending=1, rows_failed=0
                ),
                read("devices.visible", rank=1, own="GPU-a1", count=2, present=2),
            ),
            (1,),
        ),
        Fires(readings_case(read("devices.device GPU 3", rank=2, problem="GPU is lost")), (2,)),
        Quiet(
            readings_case(
                read(
                    "devices.device GPU 0", uuid="GPU-a0", name="H100", ecc_uncorrected=0, rows_pending=0, rows_failed=0
                ),
                read("devices.device GPU 1", uuid="GPU-a1", name="GeForce RTX 4090"),
            ),
            "no errors, and a device without ECC",
        ),
    ),
}
