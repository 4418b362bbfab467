"""Rule: one node has less than the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import size
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_LESS = 0.75
_MAJORITY = 3
_COMPARED = (("machine.memory", "total_bytes", "memory"), ("machine.cores", "online", "cores"))


class NodesUnlike(ReadingRule):
    """A node has far fewer cores or less memory than most of the others.

    What it detects:
        Less than three quarters of what most nodes have; from three nodes on, as of two nobody knows which is the odd one.

    Why it hangs:
        All ranks go as fast as the slowest, and the node with less memory is the first on which a process is killed.

    How to confirm:
        `lscpu; free -g` on that node; a memory module or a socket that was switched off is in its event log.

    How to fix:
        Repair the node, or leave it out.

    Sources:
        A synchronous step is as long as that of its slowest rank.
    """

    id = "nodes-unlike"
    cause = "straggler"
    reads = ("machine.memory", "machine.cores")
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                *[read("machine.memory", rank=r, total_bytes=(500 if r == 4 else 1000) << 30) for r in (0, 2, 4, 6)],
                *[read("machine.cores", rank=r, cpus="0-63", count=64, online=64) for r in (0, 2, 4, 6)],
                world=8,
            ),
            (4,),
        ),
        Quiet(
            readings_case(
                *[read("machine.memory", rank=r, total_bytes=(500 + r) << 30) for r in (0, 2, 4)],
                *[read("machine.cores", rank=r, cpus="0-63", count=64, online=64) for r in (0, 2, 4)],
                world=6,
            ),
            "as good as equal",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for each thing of which a node has less."""
        for kind, name, what in _COMPARED:
            hosts: dict[str, Reading] = {}
            for reading in s.readings.of(kind):
                hosts.setdefault(reading.host, reading)
            amounts = {host: amount for host, r in hosts.items() if (amount := r.number(name))}
            if len(amounts) < _MAJORITY:
                continue
            usual = sorted(amounts.values())[len(amounts) // 2]
            less = [hosts[host] for host, amount in amounts.items() if amount < _LESS * usual]
            if less and len(less) < len(amounts) / 2:
                yield self._finding(less, what, min(amounts[r.host] for r in less), usual)

    def _finding(self, less: list[Reading], what: str, least: float, usual: float) -> Finding:
        def told(amount: float) -> str:
            return size(amount) if what == "memory" else f"{amount:g}"

        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{hosts_of(less)} has less {what} than the other nodes: {told(least)}, not {told(usual)}",
            confidence=0.72,
            culprit_ranks=ranks_of(less),
            because="Nodes of one job are usually alike: something may be broken or switched off there.",
            evidence=cite(less),
            fixes=(
                Fix(
                    "Look at the node, or leave it out",
                    command="lscpu; free -g; dmesg --level=err,warn | tail -50",
                    verify="unhang check on all nodes finds them alike",
                    undo="not needed",
                ),
            ),
        )
