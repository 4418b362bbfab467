"""Rule: the kernel has reported a link that goes down again and again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import ago
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_OFTEN = 3


class KernelLinkFlaps(ReadingRule):
    """A network link went down several times within a day.

    What it detects:
        Three or more messages "Link is Down" of one interface in the kernel's log of the last day, in a job of several nodes.

    Why it hangs:
        Connections over it are lost or stall until they are given up; the collective waits meanwhile.

    How to confirm:
        `dmesg -T | grep -i 'link.*down'`; `ethtool -S INTERFACE | grep -i err`; the counters of the switch's port.

    How to fix:
        Exchange cable or transceiver; take the node out until then.

    Sources:
        Messages of the drivers mlx5_core, igb, ixgbe, i40e, bnxt_en.
    """

    id = "kernel-link-flaps"
    cause = "network-unstable"
    reads = ("machine.kernel_log", "setup.job")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("setup.job here", nodes=2),
                read("machine.kernel_log", rank=2, messages=90),
                read("machine.kernel kernel.link_down", rank=2, name="ens1f0np0", count=5, age_s=300, text="Link down"),
            ),
            (2,),
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=2),
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.link_down", name="eth0", count=1, age_s=300, text="Link is Down"),
            ),
            "once, as at every start",
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=1),
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.link_down", name="eth0", count=9, age_s=300, text="Link is Down"),
            ),
            "a laptop that is carried about: no other node is needed",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each link, where the job has more than one node."""
        if not any((job.number("nodes") or 0) > 1 for job in s.readings.of("setup.job")):
            return
        down = s.readings.of("machine.kernel", subject="kernel.link_down")
        flapping = [r for r in down if (r.number("count") or 0) >= _OFTEN]
        for reading in flapping:
            age = ago(reading.number("age_s") or 0)
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"the link of {reading['name']} on {hosts_of([reading])} went down {reading['count']} times, last {age}",
                confidence=0.75,
                culprit_ranks=ranks_of([reading]),
                because="A link that goes down within a day without a restart has a bad cable, transceiver or port.",
                evidence=cite([reading]),
                fixes=(
                    Fix(
                        "Look at cable, transceiver and port, or leave the node out",
                        command=f"ethtool {reading['name']}; ethtool -S {reading['name']} | grep -i -e err -e drop",
                        verify="no new message of that link in dmesg under load",
                        undo="take the node in again",
                    ),
                ),
            )
