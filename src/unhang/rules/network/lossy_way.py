"""Rule: packets are lost between two hosts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.pair_readings import (
    PAIR,
    confirmed,
    host_in_all,
    is_black_hole,
    loss_of,
    named,
    ranks_at,
    ways_of,
)
from unhang.rules.reading_rule import ReadingRule, cite


def _pair(rank: int, peer: int, lost: int = 0, bulk_lost: int = 0) -> Reading:
    host = f"node{peer // 2}"
    return read(
        f"{PAIR} node{rank // 2} -> {host}",
        rank=rank,
        peer_rank=peer,
        peer_host=host,
        tried=8,
        connected=8,
        pings=40,
        segments=41,
        lost=lost,
        bulk_segments=4000,
        bulk_lost=bulk_lost,
        measured=2,
    )


class LossyWay(ReadingRule):
    """Packets are lost between two hosts of the job.

    What it detects:
        The kernel's counters of segments that TCP had to send again: more than 1 % of small ones on an idle connection, or
        of a large transfer where the other pairs of the job lose far less. It is measured twice, the second time alone.

    Why it hangs:
        Each lost packet costs 200 ms and more, and every collective waits for the slowest pair. At several percent,
        connections are given up.

    How to confirm:
        `ss -ti dst HOST` (retrans), `ip -s link` and `ethtool -S` on both ends: errors, drops, a duplex or speed that differs.

    How to fix:
        The cable, the optic, the port of the switch, an overloaded or misconfigured virtual network.

    Sources:
        RFC 6298: the retransmission timer; linux/tcp.h, struct tcp_info.
    """

    id = "lossy-way"
    cause = "network-unstable"
    reads = (PAIR,)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(_pair(0, 2, lost=6), _pair(2, 0), _pair(0, 4), _pair(2, 4), _pair(4, 0), world=6),
            (0, 2),
        ),
        Quiet(readings_case(_pair(0, 2, lost=1), _pair(2, 0), _pair(0, 4)), "a single one"),
        Quiet(
            readings_case(*(_pair(a, b, bulk_lost=60) for a in (0, 2, 4) for b in (0, 2, 4) if a != b), world=6),
            "all pairs lose alike under load: the transfer itself fills the queues",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all such pairs."""
        ways = ways_of(s)
        bad = confirmed([p for p in ways.pairs if ways.is_lossy(p) and not is_black_hole(p)])
        if not bad:
            return
        host = host_in_all(bad, ways)
        culprits = ranks_at(bad, host)
        worst = max(map(loss_of, bad))
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{100 * worst:.0f} % of the packets are lost {named(bad, host)}",
            confidence=0.9,
            culprit_ranks=culprits,
            victim_ranks=s.others(culprits),
            because="TCP had to send them again. Each one delays its pair by 200 ms or more, and every collective waits for the slowest pair.",
            evidence=cite(bad),
            fixes=(
                Fix(
                    "Look for errors at both ends",
                    command="ip -s link; ethtool -S <interface> | grep -iE 'err|drop|crc'",
                    verify="unhang check --only network on all ranks",
                    undo="nothing is changed",
                ),
                Fix(
                    f"Leave {host or 'one of the two hosts'} out until it is repaired",
                    setting="--exclude=<node> (Slurm), cordon (Kubernetes)",
                    verify="unhang check without it has no finding",
                    undo="take it in again",
                ),
            ),
        )
