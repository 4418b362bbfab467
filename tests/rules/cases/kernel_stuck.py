"""The cases of kernel-stuck."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "kernel-stuck": (
        Fires(
            readings_case(
                read("machine.kernel_log", rank=2, messages=90),
                read(
                    "machine.kernel kernel.server_lost", rank=2, name="10.0.0.9", count=4, age_s=900, text="nfs: server"
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("machine.kernel_log", messages=90),
                read(
                    "machine.kernel kernel.disk_error",
                    name="nvme0n1",
                    count=4,
                    age_s=9000,
                    text="I/O error, dev nvme0n1",
                ),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.server_lost", name="10.0.0.9", count=4, age_s=900, text="nfs: server"),
                read("machine.kernel kernel.server_back", name="10.0.0.9", count=4, age_s=890, text="nfs: server"),
            ),
            "the server came back",
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.lockup", count=1, age_s=40000, text="soft lockup"),
            ),
            "a virtual machine that was paused in the night",
        ),
    ),
}
