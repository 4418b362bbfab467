"""Rule: several ranks on devices that are cut into slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite


class MigMode(ReadingRule):
    """Devices that are cut into slices (MIG) in a job of several ranks.

    What it detects:
        MIG is on for a device, and the job has more than one rank, with another backend than gloo.

    Why it hangs:
        Slices have no direct way to each other, and NCCL takes two slices of one device for the same device: it refuses them, or
        the ranks fail at the first collective.

    How to confirm:
        `nvidia-smi -L` lists the slices; `nvidia-smi --query-gpu=index,mig.mode.current --format=csv`.

    How to fix:
        Whole devices for jobs of several ranks: turn MIG off there, or ask the scheduler for other nodes.

    Sources:
        NVIDIA Multi-Instance GPU user guide: application considerations.
    """

    id = "mig-mode"
    cause = "device-mapping"
    reads = ("devices.device", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("devices.device GPU 0", uuid="GPU-0", is_mig=True),
                read("devices.device GPU 1", uuid="GPU-1", is_mig=False),
                read("setup.job here", ranks_per_node=2, world_size=4),
            ),
            (0,),
        ),
        Quiet(
            readings_case(read("devices.device GPU 0", is_mig=True), read("setup.job here", world_size=1)),
            "one rank may use a slice",
        ),
        Quiet(
            readings_case(read("devices.device GPU 0", is_mig=False), read("setup.job here", world_size=8)),
            "whole devices",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all devices."""
        jobs = s.readings.of("setup.job")
        sliced = [d for d in devices_of(s) if d["is_mig"]]
        if not sliced or not any((j.number("world_size") or 1) > 1 for j in jobs) or on_gloo(s):
            return
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{named(sliced)}: cut into slices (MIG), and the job has several ranks",
            confidence=0.85,
            culprit_ranks=users_of(s, sliced),
            because="NCCL needs whole devices, one for each rank.",
            evidence=cite(sliced),
            fixes=(
                Fix(
                    "Turn MIG off, with no job on the device",
                    command="nvidia-smi -i N -mig 0 && nvidia-smi --gpu-reset -i N",
                    verify="nvidia-smi --query-gpu=mig.mode.current --format=csv: Disabled",
                    undo="nvidia-smi -i N -mig 1, and make the instances again",
                ),
            ),
        )


def on_gloo(s: Situation) -> bool:
    """Whether the check was told that the job runs without devices."""
    return any(r["backend"] == "gloo" for r in s.readings.of("devices.visible"))
