"""Rule: the way between two hosts is far slower than between the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.pair_readings import (
    FAR_MS,
    PAIR,
    Ways,
    confirmed,
    host_in_all,
    named,
    ranks_at,
    ways_of,
)
from unhang.rules.reading_rule import ReadingRule, cite


def _pairs(hosts: int, slow: Sequence[tuple[int, int]] = (), rtt_ms: float = 12.0, **fields: Any) -> list[Reading]:
    return [
        read(
            f"{PAIR} node{a} -> node{b}",
            rank=2 * a,
            peer_rank=2 * b,
            peer_host=f"node{b}",
            tried=8,
            connected=8,
            measured=2,
            **{
                "rtt_min_ms": 0.2,
                "bandwidth_mbytes_s": 900.0,
                **({"rtt_min_ms": rtt_ms, **fields} if (a, b) in slow or (b, a) in slow else {}),
            },
        )
        for a in range(hosts)
        for b in range(hosts)
        if a != b
    ]


class SlowWay(ReadingRule):
    """The round trip or the bandwidth between two hosts is far worse than between the other hosts of the job.

    What it detects:
        The shortest round trip of a pair is more than four times what is usual among the pairs, more than six times their spread
        above it, and 2 ms above it; or the bandwidth is below a quarter of the median of the others. What stands out is
        measured again, alone. A median above 20 ms is told whatever the pairs have in common.

    Why it hangs:
        It does not by itself: every collective is as slow as its slowest pair. With timeouts chosen for the others it fails.

    How to confirm:
        `ping HOST`, `iperf3 -c HOST` between these hosts and between two others.

    How to fix:
        A wrong route (over another site, or the management network), a link that fell back to a lower speed, a crowded
        uplink. Choose the interface with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.

    Sources:
        Median and median absolute deviation: Hampel, The influence curve and its role in robust estimation, 1974.
    """

    id = "slow-way"
    cause = "network-unstable"
    reads = (PAIR,)
    EXAMPLES: ClassVar = (
        Fires(readings_case(_pairs(4, slow=[(1, 2)]), world=8), (2, 4)),
        Fires(readings_case(_pairs(4, slow=[(0, 3), (1, 3), (2, 3)]), world=8), (6,)),
        Fires(readings_case(_pairs(4, slow=[(0, 3)], rtt_ms=0.2, bandwidth_mbytes_s=90.0), world=8), (0, 6)),
        Quiet(readings_case(_pairs(4, slow=[(1, 2)], rtt_ms=1.1), world=8), "another rack of the same site"),
        Quiet(readings_case(_pairs(4, slow=[(1, 2)], rtt_ms=0.3, bandwidth_mbytes_s=300.0), world=8), "somewhat less"),
        Quiet(readings_case(_pairs(2, slow=[(0, 1)]), world=4), "two hosts: nothing to compare with"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """Slow pairs, narrow pairs, and a job that is spread over far places."""
        ways = ways_of(s)
        sound = [p for p in ways.pairs if p["stalled"] is not True and not ways.is_lossy(p)]
        slow = confirmed([p for p in sound if ways.is_slow(p)])
        narrow = confirmed([p for p in sound if ways.is_narrow(p) and p not in slow])
        usual_ms = ways.usual_rtt_ms[0]
        if slow:
            worst = max(p.number("rtt_min_ms") or 0 for p in slow)
            yield self._finding(s, slow, ways, f"the round trip takes {worst:.1f} ms (usual here: {usual_ms:.1f} ms)")
        if narrow:
            least = min(p.number("bandwidth_mbytes_s") or 0 for p in narrow)
            yield self._finding(s, narrow, ways, f"{least:.1f} MB/s pass (usual here: {ways.usual_mbytes_s:.0f} MB/s)")
        if usual_ms > FAR_MS:
            yield self._finding(s, ways.pairs, None, f"the round trip between most hosts takes {usual_ms:.0f} ms")

    def _finding(self, s: Situation, bad: Sequence[Reading], ways: Ways | None, what: str) -> Finding:
        host = host_in_all(bad, ways) if ways else ""
        culprits = ranks_at(bad, host) if ways else ()
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{what} {named(bad, host)}" if ways else what,
            confidence=0.85 if ways else 0.75,
            culprit_ranks=culprits,
            victim_ranks=s.others(culprits),
            because="Every collective is as slow as its slowest pair.",
            evidence=cite(bad),
            fixes=(
                Fix(
                    "See which way the packets take, and at which speed the link runs",
                    command=f"ip route get {bad[0].text('address') or '<address>'}; ethtool <interface> | grep Speed",
                    verify="unhang check --only network on all ranks",
                    undo="nothing is changed",
                ),
            ),
        )
