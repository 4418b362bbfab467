"""Rule: a device is slowed down by its hardware."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite

_NEAR_C = 2


class DeviceSlowed(ReadingRule):
    """Heat or the power supply holds down the clock of a device, before any work is done on it.

    What it detects:
        The reasons that the driver gives for a lower clock: heat, or the brake that a power supply pulls; or a temperature at
        the limit from which the clock is lowered. An idle device and a power limit that was set are none.

    Why it hangs:
        It does not: but all ranks go as fast as the slowest device, and a device that is slowed while idle gets slower under load.

    How to confirm:
        `nvidia-smi -q -i N -d PERFORMANCE,TEMPERATURE,POWER,CLOCK`.

    How to fix:
        Fans, inlet temperature, power cables and supplies of that node; other processes on the device.

    Sources:
        NVML API reference, nvmlClocksEventReasons.
    """

    id = "device-slowed"
    cause = "straggler"
    reads = ("devices.device",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("devices.device GPU 0", uuid="GPU-a0", slowdowns="", temperature_c=34, slowdown_at_c=87),
                read(
                    "devices.device GPU 1", uuid="GPU-a1", slowdowns="power brake", temperature_c=36, slowdown_at_c=87
                ),
                read("devices.visible", rank=1, own="GPU-a1", count=2, present=2),
            ),
            (1,),
        ),
        Fires(readings_case(read("devices.device GPU 0", slowdowns="", temperature_c=88, slowdown_at_c=87)), (0,)),
        Quiet(
            readings_case(
                read("devices.device GPU 0", slowdowns="", temperature_c=64, slowdown_at_c=87, clock_mhz=210),
                read("devices.device GPU 1", temperature_c=60),
            ),
            "the low clock of an idle device",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all devices."""
        slowed = [d for d in devices_of(s) if d["slowdowns"] or _is_hot(d)]
        if not slowed:
            return
        reasons = dict.fromkeys(d.text("slowdowns") or f"{d['temperature_c']} degrees" for d in slowed)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{named(slowed)}: slowed down ({'; '.join(reasons)})",
            confidence=0.78,
            culprit_ranks=users_of(s, slowed),
            because="The driver tells the reason by itself. All ranks of a job wait for the slowest at every step.",
            evidence=cite(slowed),
            fixes=(
                Fix(
                    "Mend cooling or power supply of the node, or leave it out",
                    command="nvidia-smi -q -i N -d PERFORMANCE,TEMPERATURE,POWER; ipmitool sensor | grep -i -e fan -e inlet -e psu",
                    verify="nvidia-smi -q -d PERFORMANCE: no thermal slowdown and no power brake",
                    undo="nothing is changed by looking",
                ),
            ),
        )


def _is_hot(device: Reading) -> bool:
    temperature, limit = device.number("temperature_c"), device.number("slowdown_at_c")
    return temperature is not None and bool(limit) and temperature > (limit or 0) - _NEAR_C
