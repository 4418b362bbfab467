"""Rule: some hosts would use IPv4 and others IPv6."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of


class FamilyDiffers(ReadingRule):
    """The address that a backend chooses is IPv4 on some hosts and IPv6 on others.

    What it detects:
        The address families of what gloo (or NCCL) chooses on each host: they are not all the same.

    Why it hangs:
        Gloo aborts when the families of two ends differ; the ranks that are connected already wait for the one that is gone.

    How to confirm:
        `getent ahosts $(hostname)` on two hosts: the first line decides.

    How to fix:
        The same family everywhere: entries of the same kind in /etc/hosts or in the name servers, or name the interface.
        NCCL: NCCL_SOCKET_FAMILY=AF_INET.

    Sources:
        gloo/transport/tcp: both ends must have the same address family.
    """

    id = "family-differs"
    cause = "network-interface"
    reads = ("network.choice",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("network.choice gloo", rank=0, address="10.0.0.1", family="IPv4", is_main=True),
                read("network.choice gloo", rank=2, address="10.0.0.2", family="IPv4", is_main=True),
                read("network.choice gloo", rank=4, address="fd00::3", family="IPv6", is_main=True),
                world=6,
            ),
            (4,),
        ),
        Quiet(
            readings_case(read("network.choice gloo", rank=r, address="fd00::1", family="IPv6") for r in (0, 2)),
            "IPv6 everywhere",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per backend. The majority is the reference; where there is none, all are named."""
        for backend in ("gloo", "nccl"):
            groups: dict[str, list[Reading]] = {}
            for choice in s.readings.of("network.choice", subject=backend):
                if choice["family"] and choice["is_loopback"] is not True:
                    groups.setdefault(choice.text("family"), []).append(choice)
            if len(groups) < 2:
                continue
            (most, usual), (least, odd) = sorted(groups.items(), key=lambda item: -len(item[1]))
            culprits = odd if len(odd) < len(usual) else [*odd, *usual]
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{backend} would use {least} on {hosts_of(odd)} and {most} on {hosts_of(usual)}",
                confidence=0.95 if odd[0]["is_main"] else 0.72,
                culprit_ranks=ranks_of(culprits),
                victim_ranks=s.others(ranks_of(culprits)),
                because="Both ends of a connection must have the same address family."
                + ("" if len(odd) < len(usual) else " Neither has a majority."),
                evidence=cite([*odd[:4], *usual[:4]]),
                fixes=(
                    Fix(
                        "Use one family everywhere",
                        command=f"getent ahosts {odd[0].text('asked') or odd[0].host}   # the first line decides",
                        verify="unhang check --only network on all ranks",
                        undo="restore /etc/hosts",
                    ),
                ),
            )
