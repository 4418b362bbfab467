"""Rule: a device has a slower PCIe link than its like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.device.device_readings import devices_of, less_than_peers, named, users_of
from unhang.rules.reading_rule import ReadingRule, cite

_WIDTH, _GENERATION = "pcie_width", "pcie_gen"


class PcieNarrow(ReadingRule):
    """The PCIe link of a device has fewer lanes, or is of an older generation, than that of most devices of its model.

    What it detects:
        Lanes in use, and fewer than the slot has; the generation of devices that are at full clock, as an idle link is slowed
        on purpose. Only where most devices of the same model have more: what all have is how the machines are built.

    Why it hangs:
        It does not: but loading, checkpoints, and all traffic to the network card of that device are slower, and all ranks wait
        for that one.

    How to confirm:
        `nvidia-smi --query-gpu=index,pcie.link.width.current,pcie.link.width.max,pcie.link.gen.current --format=csv`;
        `lspci -vv -s BUS | grep LnkSta`.

    How to fix:
        Seat the card or riser anew, clean the contacts, try another slot; then exchange it.

    Sources:
        NVML API reference, nvmlDeviceGetCurrPcieLinkWidth, nvmlDeviceGetMaxPcieLinkWidth.
    """

    id = "pcie-narrow"
    cause = "straggler"
    reads = ("devices.device",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                [
                    read(
                        f"devices.device GPU {i}",
                        uuid=f"GPU-{i}",
                        name="H100",
                        pcie_width=8 if i == 2 else 16,
                        max_pcie_width=16,
                    )
                    for i in range(4)
                ],
                [read("devices.visible", rank=r, own=f"GPU-{r}", host="node0", present=4) for r in range(4)],
            ),
            (2,),
        ),
        Quiet(
            readings_case(
                [
                    read(
                        f"devices.device GPU {i}",
                        uuid=f"GPU-{i}",
                        name="RTX 4090",
                        pcie_width=8,
                        max_pcie_width=16,
                        pcie_gen=4 if i else 1,
                        max_pcie_gen=4,
                        performance_state=0 if i else 8,
                    )
                    for i in range(4)
                ],
            ),
            "all slots are alike, and a link is slow because it is idle",
        ),
        Quiet(
            readings_case(read("devices.device GPU 0", name="RTX 4070 Laptop", pcie_width=8, max_pcie_width=16)),
            "one device: there is nothing to compare it with",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for lanes, one for the generation."""
        devices = devices_of(s)
        busy = [d for d in devices if d["performance_state"] == 0]
        for name, what, compared in ((_WIDTH, "lanes", devices), (_GENERATION, "as generation", busy)):
            less, usual = less_than_peers(compared, name)
            less = tuple(d for d in less if (d.number(name) or 0) < (d.number(f"max_{name}") or 0))
            if not less:
                continue
            least = min(d.number(name) or 0 for d in less)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"the PCIe link of {named(less)} has {least:g} {what}, not {usual:g}",
                confidence=0.78,
                culprit_ranks=users_of(s, less),
                because="Most devices of this model have more, and its own slot allows more: the link was trained down.",
                evidence=cite(less),
                fixes=(
                    Fix(
                        "Seat the card anew, or leave the node out",
                        command="lspci -vv -s BUS | grep -e LnkCap -e LnkSta",
                        verify="LnkSta has the width and speed of LnkCap, without 'downgraded'",
                        undo="nothing is changed by looking",
                    ),
                ),
            )
