"""The cases of kernel-device-error."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "kernel-device-error": (
        Fires(
            readings_case(
                read("machine.kernel_log", rank=2, messages=900),
                read(
                    "machine.kernel kernel.xid",
                    rank=2,
                    code="79",
                    bus="0000:44:00",
                    count=1,
                    age_s=7200,
                    text="NVRM: Xid",
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("machine.kernel_log", messages=900),
                read(
                    "machine.kernel kernel.pcie_error",
                    severity="Uncorrected",
                    count=2,
                    age_s=60,
                    text="AER: Uncorrected",
                ),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=900),
                read("machine.kernel kernel.xid", code="31", bus="0000:44:00", count=9, age_s=7200, text="NVRM: Xid"),
                read(
                    "machine.kernel kernel.pcie_error", severity="Corrected", count=9, age_s=7200, text="AER: Corrected"
                ),
            ),
            "a fault of a program, and errors that were corrected",
        ),
    ),
}
