"""Rule: the driver or the firmware of a device stopped answering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.device.xid import accuses_device, accuses_firmware
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule


class DriverBug(LineRule):
    """The device's system processor (GSP) does not answer the driver.

    What it detects:
        Xid 119 or 120, or the driver's words of a timeout of the GSP, without a sign that the device itself is broken.

    Why it hangs:
        Every call of the driver on that device blocks, also nvidia-smi; the rank never completes its collective.

    How to confirm:
        `dmesg -T | grep -E 'Xid.*(119|120)|GSP'`; nvidia-smi hangs on that node.

    How to fix:
        A newer driver of the same branch; until then the driver without GSP firmware, where the device allows it.

    Sources:
        NVIDIA Xid catalogue, 119 and 120; release notes of the data center driver 525.105.17 (GSP RPC timeouts fixed).
    """

    id = "driver-bug"
    cause = "driver-bug"
    kinds: ClassVar = ("kernel.xid", "kernel.gsp_timeout")
    confidence: ClassVar = 0.82
    headline: ClassVar = "the GPU's system processor (GSP) does not answer the driver"
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "NVRM: Xid (PCI:0000:b5:00): 119, pid=11, Timeout waiting for RPC from GSP! Expected function 76.\n"
            ),
            (),
        ),
        Quiet(
            log_case(
                "NVRM: Xid (PCI:0000:b5:00): 79, GPU has fallen off the bus.\n"
                "NVRM: Xid (PCI:0000:b5:00): 119, Timeout waiting for RPC from GSP!\n"
            ),
            "a device that is gone does not answer either",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lines about the GSP, unless the device itself is accused."""
        if any(accuses_device(e.number("code")) for e in s.events.of("kernel.xid")) or s.events.has(
            "kernel.off_the_bus", "kernel.ecc_uncorrectable"
        ):
            return ()
        xids = [e for e in s.events.of("kernel.xid") if accuses_firmware(e.number("code"))]
        return tuple(sorted((*xids, *s.events.of("kernel.gsp_timeout")), key=lambda e: e.order))

    def because(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """What is known of it."""
        return (
            "The driver waited for the firmware that runs on the device. Some driver releases had this fault; a device that fails only "
            "ever on the same slot with different drivers points to hardware instead. Changes in the program do not matter."
        )

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return (
            Fix(
                "Update the driver to the newest of its branch",
                command="nvidia-smi --query-gpu=driver_version --format=csv",
                verify="no Xid 119 or 120 in dmesg over the time in which one came before",
                undo="install the former driver",
            ),
            Fix(
                "Until then, run the driver without GSP firmware (proprietary module, before Blackwell)",
                setting="options nvidia NVreg_EnableGpuFirmware=0 in /etc/modprobe.d, then a reboot",
                verify="/proc/driver/nvidia/params says EnableGpuFirmware: 0",
                undo="remove the option and reboot",
            ),
        )
