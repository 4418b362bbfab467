"""Rule: the driver of the devices does not answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class DriverSilent(ReadingRule):
    """The driver of the devices does not answer, or refuses because its library is of another version.

    What it detects:
        NVML (or amdsmi) was asked for the devices, and did not come back within 20 seconds, or refused with an error that is
        not "no driver". "Driver/library version mismatch": the driver was updated under the running kernel module.

    Why it hangs:
        A rank on that host waits in the first call of CUDA, without a message and often beyond SIGKILL, or fails there; its
        peers wait for it in the rendezvous or the first collective.

    How to confirm:
        `timeout 30 nvidia-smi; dmesg -T | grep -i -e nvrm -e xid`; `cat /proc/driver/nvidia/version; modinfo -F version nvidia`.

    How to fix:
        Drain the node; unload and load the driver, or restart the node.

    Sources:
        NVML API reference, nvmlReturn_t: NVML_ERROR_LIB_RM_VERSION_MISMATCH; NVIDIA, Xid 119.
    """

    id = "driver-silent"
    cause = "driver-bug"
    reads = ("devices.driver",)
    EXAMPLES: ClassVar = (
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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts."""
        bad = [r for r in s.readings.of("devices.driver") if r["problem"]]
        if not bad:
            return
        is_mismatch = any(r["is_mismatch"] for r in bad)
        what = "was updated, but not loaded again" if is_mismatch else "does not answer"
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the driver of the devices {what} on {hosts_of(bad)}",
            confidence=0.96 if is_mismatch or any(r["is_silent"] for r in bad) else 0.92,
            culprit_ranks=ranks_of(bad),
            victim_ranks=s.others(ranks_of(bad)),
            because="A rank there meets the same in its first call of CUDA.",
            evidence=cite(bad),
            fixes=(
                Fix(
                    "Load the driver again, or restart the node, with no job on it",
                    command="systemctl stop nvidia-persistenced nvidia-fabricmanager; rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia "
                    "&& modprobe nvidia && nvidia-smi",
                    verify="nvidia-smi lists all devices within seconds",
                    undo="start the stopped services again",
                ),
            ),
        )
