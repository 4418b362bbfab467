"""The cases of kernel-oom-kill."""

from __future__ import annotations

from unhang.testing import Fires, Quiet, read, readings_case

CASES = {
    "kernel-oom-kill": (
        Fires(
            readings_case(
                read("machine.kernel_log", messages=90),
                read(
                    "machine.kernel kernel.oom_kill",
                    name="python",
                    count=2,
                    age_s=600,
                    text="Killed process 42 (python)",
                ),
            ),
            (),
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read(
                    "machine.kernel kernel.oom_kill",
                    name="chrome",
                    count=2,
                    age_s=600,
                    text="Killed process 4 (chrome)",
                ),
            ),
            "a browser",
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.oom_kill", name="python", count=1, age_s=40000, text="Killed process 4"),
            ),
            "hours ago",
        ),
    ),
}
