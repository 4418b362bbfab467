"""Rule: a device has fewer NVLinks than its like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, less_than_peers, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite


class NvlinkDown(ReadingRule):
    """NVLinks of a device are down, or had to be trained again.

    What it detects:
        Fewer links that are up than most devices of the same model have; links that were lost and trained again since the driver
        was loaded.

    Why it hangs:
        NCCL plans its rings over links that are up on all devices; what remains is slow, and a link that is lost in the middle of
        a transfer leaves both ends waiting.

    How to confirm:
        `nvidia-smi nvlink --status -i N`, `nvidia-smi nvlink -e -i N`, `dmesg -T | grep -e 'Xid.*74' -e SXid`.

    How to fix:
        Reset the devices and the NVSwitches of that node; have bridge, board or cable exchanged if it comes again.

    Sources:
        NVML API reference, nvmlDeviceGetNvLinkState, nvmlDeviceGetNvLinkErrorCounter.
    """

    id = "nvlink-down"
    cause = "gpu-hardware"
    reads = ("devices.device",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [
                    read(f"devices.device GPU {i}", uuid=f"GPU-{i}", name="H100", nvlinks_up=18 - 2 * (i == 3))
                    for i in range(4)
                ],
                [read("devices.visible", rank=r, own=f"GPU-{r}", host="node0", present=4) for r in range(4)],
            ),
            (3,),
        ),
        Fires(readings_case(read("devices.device GPU 0", name="A100", nvlinks_up=12, nvlink_recoveries=4)), (0,)),
        Quiet(
            readings_case(
                [read(f"devices.device GPU {i}", uuid=f"GPU-{i}", name="A100 PCIe", nvlinks_up=0) for i in range(4)],
                read("devices.device GPU 4", uuid="GPU-4", name="H100", nvlinks_up=18, nvlink_recoveries=0),
            ),
            "cards without a bridge, beside another model",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for links that are down, one for links that were."""
        devices = devices_of(s)
        less, usual = less_than_peers(devices, "nvlinks_up")
        if less:
            least = min(d.number("nvlinks_up") or 0 for d in less)
            yield self._finding(s, less, f"has {least:g} NVLinks up, not {usual:g} as others of its model", 0.9)
        again = [d for d in devices if d["nvlink_recoveries"] and d not in less]
        if again:
            yield self._finding(s, again, "has NVLinks that were lost and trained again", 0.7)

    def _finding(self, s: Situation, found: Sequence[Reading], what: str, confidence: float) -> Finding:

        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{named(found)} {what}",
            confidence=confidence,
            culprit_ranks=users_of(s, found),
            because="Devices of one model in one job have the same links, if none is broken.",
            evidence=cite(found),
            fixes=(
                Fix(
                    "Reset the devices and the fabric of the node, with no job on it",
                    command="systemctl stop nvidia-fabricmanager; nvidia-smi --gpu-reset; systemctl start nvidia-fabricmanager",
                    verify="nvidia-smi nvlink --status: all links have a speed, on all devices",
                    undo="not needed",
                ),
                Fix(
                    "Until then run without NVLink",
                    setting="NCCL_P2P_LEVEL=PXB, or leave the node out",
                    verify="NCCL_DEBUG=INFO shows no channel via P2P over NVLink",
                    undo="unset NCCL_P2P_LEVEL",
                ),
            ),
        )
