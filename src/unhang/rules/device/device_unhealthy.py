"""Rule: a device says of itself that it is broken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite

_FAULTS = (
    ("problem", "cannot be reached by the driver", 0.96),
    ("rows_failed", "could not replace a broken row of memory", 0.95),
    ("ecc_uncorrected", "has had uncorrectable ECC errors since the driver was loaded", 0.9),
    ("rows_pending", "has a broken row of memory that is replaced at the next reset", 0.8),
    ("pages_pending", "has a page of memory that is retired at the next reset", 0.8),
)


class DeviceUnhealthy(ReadingRule):
    """A device is lost, or its memory has errors that cannot be corrected.

    What it detects:
        A device that the driver lists and cannot reach; uncorrectable ECC errors since the driver was loaded; rows of memory whose
        replacement failed, or is due at the next reset; pages that are to be retired.

    Why it hangs:
        The rank on that device fails in its first call, or in the middle of the run when it touches the broken memory; its peers
        wait in the collective.

    How to confirm:
        `nvidia-smi -q -i N -d ECC,ROW_REMAPPER,PAGE_RETIREMENT`, `dcgmi diag -r 3 -i N`.

    How to fix:
        Reset the device (what is pending is done then); exchange it when the errors come back or the replacement failed.

    Sources:
        NVIDIA GPU memory error management: row remapping; NVML API reference, nvmlDeviceGetRemappedRows.
    """

    id = "device-unhealthy"
    cause = "gpu-hardware"
    reads = ("devices.device",)
    EXAMPLES: ClassVar = (
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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each sort of fault; a device is named with its worst only."""
        faulty: dict[tuple[str, str, float], list[Reading]] = {}
        for device in devices_of(s):
            if fault := next((f for f in _FAULTS if device[f[0]]), None):
                faulty.setdefault(fault, []).append(device)
        for (_, what, confidence), devices in faulty.items():
            ranks = users_of(s, devices)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{named(devices)} {what if len(devices) == 1 else what.replace('has ', 'have ', 1)}",
                confidence=confidence,
                culprit_ranks=ranks,
                victim_ranks=s.others(ranks),
                because="The driver reports the device itself; no program causes that.",
                evidence=cite(devices),
                fixes=(
                    Fix(
                        "Reset the device with no job on it; leave the node out until it passes a test",
                        command="nvidia-smi --gpu-reset -i N && dcgmi diag -r 3 -i N",
                        verify="nvidia-smi -q -i N -d ECC,ROW_REMAPPER: no uncorrectable error, nothing pending",
                        undo="take the node in again",
                    ),
                ),
            )
