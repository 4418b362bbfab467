"""Rule: the variable that chooses devices names some that are not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class VisibleDevicesWrong(ReadingRule):
    """CUDA_VISIBLE_DEVICES names a device that is not there, or one device twice.

    What it detects:
        Each name in the variable, an index or a uuid, against the devices of the host. CUDA hides a name that is unknown and all
        that follow it, and hides all devices when one is named twice; it prints nothing.

    Why it hangs:
        The rank sees fewer devices than were meant: it fails with "invalid device ordinal" or "no CUDA-capable device", or takes
        the device of another rank; the others wait for it.

    How to confirm:
        `nvidia-smi -L`, and `python -c "import torch; print(torch.cuda.device_count())"` with the environment of that rank.

    How to fix:
        Take the variable out, or name devices that are there, each once. Under a scheduler leave it to the scheduler.

    Sources:
        CUDA programming guide, CUDA environment variables.
    """

    id = "visible-devices-wrong"
    cause = "device-mapping"
    reads = ("devices.visible",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read(
                    "devices.visible",
                    rank=1,
                    variable="CUDA_VISIBLE_DEVICES",
                    value="0,9",
                    count=1,
                    present=8,
                    problem="there is no device '9' among 8",
                    own="GPU-0",
                )
            ),
            (1,),
        ),
        Quiet(
            readings_case(
                read("devices.visible", variable="CUDA_VISIBLE_DEVICES", value="3,1", count=2, present=8, own="GPU-3")
            ),
            "another order is a choice",
        ),
        Quiet(
            readings_case(
                read("devices.visible", variable="CUDA_VISIBLE_DEVICES", value="", count=0, present=8, is_hidden=True)
            ),
            "devices are hidden on purpose",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all ranks with the same value."""
        wrong = [r for r in s.readings.of("devices.visible") if r["problem"]]
        for value in dict.fromkeys(r.text("value") for r in wrong):
            same = [r for r in wrong if r.text("value") == value]
            name = same[0].text("variable")
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{name}={value} on {hosts_of(same)}: {same[0]['problem']}",
                confidence=0.94,
                culprit_ranks=ranks_of(same),
                victim_ranks=s.others(ranks_of(same)),
                because=f"{same[0]['count']} of {same[0]['present']} devices are left to the rank, and nothing is printed.",
                evidence=cite(same),
                fixes=(
                    Fix(
                        "Leave the choice to the launcher, or name devices that are there",
                        command=f"unset {name}   # nvidia-smi -L lists the devices",
                        verify="unhang check --only devices: no such finding",
                        undo=f"export {name}={value}",
                    ),
                ),
            )
