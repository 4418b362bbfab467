"""Rule: the NVSwitch fabric of a node is not ready."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite


class FabricNotReady(ReadingRule):
    """The devices wait for the fabric manager, or it failed to set them up.

    What it detects:
        The state of the fabric that each device tells: not started, in progress, or completed with an error.

    Why it hangs:
        Until the fabric is set up CUDA does not start on that node (error 802), so its ranks fail and the others wait; after a
        failure NCCL cannot make multicast memory, or transfers over NVLink never complete.

    How to confirm:
        `nvidia-smi -q | grep -A4 Fabric`; `systemctl status nvidia-fabricmanager`, whose version must be that of the driver.

    How to fix:
        Install the fabric manager in the driver's version, start it, and reset the devices.

    Sources:
        NVIDIA Fabric Manager user guide; NVML API reference, nvmlGpuFabricInfoV_t.
    """

    id = "fabric-not-ready"
    cause = "fabric-manager"
    reads = ("devices.device",)
    EXAMPLES: ClassVar = (
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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all devices."""
        waiting = [d for d in devices_of(s) if _is_bad(d)]
        if not waiting:
            return
        states = dict.fromkeys(
            d.text("fabric") if not d["fabric_error"] else f"error {d['fabric_error']}" for d in waiting
        )
        ranks = users_of(s, waiting)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the NVSwitch fabric is not ready for {named(waiting)}: {', '.join(states)}",
            confidence=0.93,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks),
            because="The fabric manager sets up the NVSwitches before CUDA can start; its version must be the driver's.",
            evidence=cite(waiting),
            fixes=(
                Fix(
                    "Start the fabric manager anew, with no job on the node",
                    command="systemctl stop nvidia-fabricmanager; nvidia-smi --gpu-reset; systemctl start nvidia-fabricmanager",
                    verify="nvidia-smi -q | grep -A4 Fabric: State Completed, Status Success, on all devices",
                    undo="not needed",
                ),
            ),
        )


def _is_bad(device: Reading) -> bool:
    return device["fabric"] in ("not started", "in progress") or bool(device["fabric_error"])
