"""Rule: the kernel has reported errors of a device in the last day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.xid import XIDS, accuses_device
from unhang.rules.process.forecast import ago
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_KINDS = {
    "kernel.off_the_bus": ("a device has fallen off the bus", 0.95),
    "kernel.device_lost": ("a device is lost", 0.93),
    "kernel.ecc_uncorrectable": ("uncorrectable ECC errors of a device", 0.9),
    "kernel.nvlink_uncorrectable": ("uncorrectable errors of an NVLink", 0.9),
    "kernel.amd_uncorrectable": ("uncorrectable errors of a device", 0.9),
    "kernel.driver_init_failed": ("the driver could not start a device", 0.92),
    "kernel.gsp_timeout": ("a device's system processor does not answer", 0.85),
    "kernel.machine_check": ("machine checks: errors of a processor or of memory", 0.7),
}
_FATAL = ("Uncorrected", "Uncorrectable", "Multiple Uncorrected", "Fatal")
_UNCORRECTED, _SWITCH, _UNSURE = 0.8, 0.88, 0.7


class KernelDeviceError(ReadingRule):
    """The kernel has reported in the last day that a device, its bus or its memory failed.

    What it detects:
        Xid and SXid that accuse the device and not the program, devices that are lost, uncorrectable ECC errors, uncorrected
        errors of the PCIe bus, machine checks.

    Why it hangs:
        A rank on that device fails or does not answer; its peers wait in the collective.

    How to confirm:
        `dmesg -T | grep -i -e xid -e aer -e 'hardware error'`, then `nvidia-smi -q` or `dcgmi diag -r 2` on that node.

    How to fix:
        Leave the node out, reset the device or restart the node; exchange what fails again.

    Sources:
        NVIDIA, Xid catalogue; Documentation/PCI/pcieaer-howto.rst of the kernel.
    """

    id = "kernel-device-error"
    cause = "gpu-hardware"
    reads = ("machine.kernel_log",)
    EXAMPLES: ClassVar = (
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
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each host, as each has devices of its own."""
        told = [(w, what, r) for r in s.readings.of("machine.kernel") for what, w in [_weight(r)] if w]
        for host in dict.fromkeys(r.host for _, _, r in told):
            here = [t for t in told if t[2].host == host]
            weight, what, worst = max(here, key=lambda t: t[0])
            readings = [r for _, _, r in here]
            bus = f" ({worst['bus']})" if worst["bus"] else ""
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{what}{bus} on {hosts_of(readings)}, {ago(worst.number('age_s') or 0)}",
                confidence=weight,
                culprit_ranks=ranks_of(readings),
                because="The kernel reports the device itself. It may have been reset since; what failed once a day ago is "
                "likely to fail again under load.",
                evidence=cite(readings),
                fixes=(
                    Fix(
                        "Leave the node out, and test the device",
                        command="nvidia-smi -q -d ECC,ROW_REMAPPER; dcgmi diag -r 2; nvidia-smi --gpu-reset -i INDEX",
                        verify="no new message in dmesg after the test",
                        undo="take the node in again",
                    ),
                ),
            )


def _weight(reading: Reading) -> tuple[str, float]:
    """What a message accuses, and how sure that is; 0: nothing."""
    kind = reading.subject
    if kind == "kernel.xid":
        code = int(reading.text("code")) if reading.text("code").isdecimal() else None
        if not accuses_device(code) or code is None or XIDS[code].weight < _UNSURE:
            return "", 0.0
        return f"Xid {code}, {XIDS[code].meaning}", min(XIDS[code].weight, 0.95)
    if kind == "kernel.sxid" and reading.text("severity") == "Fatal":
        return f"a fatal error of an NVSwitch (SXid {reading.text('code')})", _SWITCH
    if kind == "kernel.pcie_error" and reading.text("severity") in _FATAL:
        return "uncorrected errors of the PCIe bus", _UNCORRECTED
    return _KINDS.get(kind, ("", 0.0))
