"""Rule: small packets pass between two hosts, large ones do not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.pair_readings import PAIR, host_in_all, is_black_hole, named, ranks_at, ways_of
from unhang.rules.reading_rule import ReadingRule, cite

_HEADERS_BYTES = 52  # IPv4 and TCP with time stamps


def _pair(rank: int, peer: int, **fields: Any) -> Reading:
    host = f"node{peer // 2}"
    return read(
        f"{PAIR} node{rank // 2} -> {host}",
        rank=rank,
        peer_rank=peer,
        peer_host=host,
        tried=8,
        connected=8,
        pings=40,
        mss_bytes=1448,
        **fields,
    )


class PathMtu(ReadingRule):
    """Small packets pass between two hosts; full-sized ones vanish without a word.

    What it detects:
        Connections and round trips of 64 bytes work, and of a large transfer not one segment arrives. Smaller segments are
        then tried to see what passes.

    Why it hangs:
        Something on the way has a smaller MTU than the interfaces, and the message that says so is dropped. The rendezvous
        is made of small packets and works; the first large tensor is sent again and again, for many minutes.

    How to confirm:
        `ping -M do -s 1472 HOST` (8972 with jumbo frames) gets no answer, `ping -s 500 HOST` does.

    How to fix:
        The same MTU on all interfaces and switches; for tunnels and overlays less than the network beneath. Let ICMP
        "fragmentation needed" pass. net.ipv4.tcp_mtu_probing=1 helps TCP, not RDMA.

    Sources:
        RFC 2923, RFC 4821: black holes of path MTU discovery.
    """

    id = "path-mtu"
    cause = "network-unstable"
    reads = (PAIR,)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                _pair(0, 2, stalled=True, passing_mss_bytes=536), _pair(2, 0, stalled=True, passing_mss_bytes=536)
            ),
            (0, 2),
        ),
        Quiet(readings_case(_pair(0, 2), _pair(2, 0)), "large transfers arrive"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all such pairs."""
        ways = ways_of(s)
        bad = [p for p in ways.pairs if is_black_hole(p)]
        if not bad:
            return
        host = host_in_all(bad, ways)
        passing = [int(n) for p in bad if (n := p.number("passing_mss_bytes")) is not None]
        used = max(int(p.number("mss_bytes") or 0) for p in bad)
        culprits = ranks_at(bad, host)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"large packets vanish {named(bad, host)}, small ones pass",
            confidence=0.95 if passing else 0.85 if all(p.number("measured") == 2 for p in bad) else 0.75,
            culprit_ranks=culprits,
            victim_ranks=s.others(culprits),
            because=_because(used, min(passing) if passing else None),
            evidence=cite(bad),
            fixes=(
                Fix(
                    "Give the interfaces an MTU that the way carries, or repair the way",
                    command=f"ip link set <interface> mtu {min(passing) + _HEADERS_BYTES if passing else 1400}   # on these hosts",
                    verify="unhang check --only network on all ranks",
                    undo="ip link set <interface> mtu <the value that `ip link` showed before>",
                ),
            ),
        )


def _because(used: int, passing: int | None) -> str:
    text = f"Of a transfer in segments of {used} bytes nothing arrived within 1.5 s, while round trips of 64 bytes work"
    return text + (f", and segments of {passing} bytes do too." if passing else ".")
