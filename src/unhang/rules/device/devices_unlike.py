"""Rule: the hosts of a job have different devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, majority, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class DevicesUnlike(ReadingRule):
    """A host has fewer devices than most, or a device is of another model or has less memory than most.

    What it detects:
        The number of devices of each host, from three hosts on; the models of all devices; the memory of devices of one model.

    Why it hangs:
        A device that is missing is often one that failed. All ranks go as fast as the slowest model, and the one with less memory
        is the first to run out of it, while the others wait.

    How to confirm:
        `nvidia-smi -L` on all nodes; on the one with fewer: `lspci | grep -i nvidia; dmesg -T | grep -i -e xid -e 'fallen off'`.

    How to fix:
        Repair the node, leave it out, or ask the scheduler for one model (`--constraint`, node selectors).

    Sources:
        A synchronous step is as long as that of its slowest rank.
    """

    id = "devices-unlike"
    cause = "straggler"
    reads = ("devices.device", "devices.visible")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [read("devices.visible", rank=r, present=7 if r == 2 else 8, local_rank=0) for r in (0, 2, 4)],
                read("devices.device GPU 0", name="H100"),
                world=6,
            ),
            (2,),
        ),
        Fires(
            readings_case(
                [
                    read(
                        "devices.device GPU 0",
                        rank=r,
                        uuid=f"GPU-{r}",
                        name="A100" if r == 4 else "H100",
                        memory_bytes=80 << 30,
                    )
                    for r in (0, 2, 4)
                ],
                [read("devices.visible", rank=r, own=f"GPU-{r}", present=1, local_rank=0) for r in (0, 2, 4)],
                world=6,
            ),
            (4,),
        ),
        Quiet(
            readings_case(
                [
                    read("devices.device GPU 0", rank=r, uuid=f"GPU-{r}", name="H100", memory_bytes=80 << 30)
                    for r in (0, 2)
                ],
                [read("devices.visible", rank=r, present=8 - r, local_rank=0) for r in (0, 2)],
            ),
            "of two hosts nobody knows which is the odd one",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for hosts with fewer devices, one for devices that are not like the others."""
        hosts = {r.host: r for r in s.readings.of("devices.visible") if r["local_rank"] == 0}
        usual = majority([r.text("present") for r in hosts.values()])
        fewer = [r for r in hosts.values() if usual and (r.number("present") or 0) < int(usual)]
        if fewer:
            least = min(int(r.number("present") or 0) for r in fewer)
            title = f"{hosts_of(fewer)} has {least} devices, most hosts have {usual}"
            yield self._finding(title, 0.8, ranks_of(fewer), fewer, "One may have failed there.")
        devices = [d for d in devices_of(s) if d["name"]]
        model = majority([d.text("name") for d in devices])
        others = [d for d in devices if model and d.text("name") != model]
        if others:
            title = f"{named(others)}: {others[0]['name']}, most devices are {model}"
            yield self._finding(title, 0.72, users_of(s, others), others, "The slowest model sets the pace of all.")
        memory = majority([d.text("memory_bytes") for d in devices if d.text("name") == model and d["memory_bytes"]])
        small = [
            d for d in devices if memory and d["memory_bytes"] and (d.number("memory_bytes") or 0) < 0.9 * int(memory)
        ]
        small = [d for d in small if d not in others]
        if small:
            title = f"{named(small)}: less memory than others of its model"
            yield self._finding(title, 0.75, users_of(s, small), small, "It is the first to run out of memory.")

    def _finding(
        self, title: str, confidence: float, ranks: tuple[int, ...], found: list[Reading], because: str
    ) -> Finding:
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=title,
            confidence=confidence,
            culprit_ranks=ranks,
            because=f"Devices of one job are usually alike. {because}",
            evidence=cite(found),
            fixes=(
                Fix(
                    "Look at the node, or leave it out",
                    command="nvidia-smi -L; lspci | grep -i nvidia; dmesg -T | grep -i -e xid -e 'fallen off'",
                    verify="unhang check on all nodes finds their devices alike",
                    undo="nothing is changed by looking",
                ),
            ),
        )
