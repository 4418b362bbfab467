"""Rule: connections between two hosts of the job do not come about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.pair_readings import PAIR, Ways, host_in_all, is_blocked, named, ranks_at, ways_of
from unhang.rules.reading_rule import ReadingRule, cite

_OUTCOMES = ("timed_out", "refused", "no_route", "not_ours", "failed")
_WORDS = {
    "timed_out": "no answer (dropped by a firewall, or a wrong route)",
    "refused": "refused (rejected by a firewall)",
    "no_route": "no route to it",
    "not_ours": "another process or host answers there",
    "failed": "failed",
}


def _pair(rank: int, peer: int, connected: int = 8, **fields: Any) -> Reading:
    host = f"node{peer // 2}"
    return read(
        f"{PAIR} node{rank // 2} -> {host}",
        rank=rank,
        peer_rank=peer,
        peer_host=host,
        address=f"10.0.0.{peer}",
        tried=8,
        connected=connected,
        **fields,
    )


class PortsBlocked(ReadingRule):
    """A host listens on random ports, as gloo and NCCL do, and another host of the job cannot connect to them.

    What it detects:
        Each host listens on ports spread over the range from which the kernel takes them; every other host connects to all
        of them and asks for a token. What is refused, dropped or answered by somebody else is counted.

    Why it hangs:
        The rendezvous uses one port that is open. The backends then connect over random ports: the ranks wait for
        connections that never come about.

    How to confirm:
        `nc -l PORT` on one host, `nc -zv HOST PORT` on the other, with a port that failed and one that did not.

    How to fix:
        Allow all TCP ports between the nodes of the job, or name an interface whose network is open.

    Sources:
        NCCL user guide, troubleshooting: firewalls; net.ipv4.ip_local_port_range.
    """

    id = "ports-blocked"
    cause = "network-interface"
    reads = (PAIR,)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                _pair(0, 2, connected=5, timed_out=3, failed_ports="52100 55000 59000", measured=2),
                _pair(2, 0),
                _pair(0, 4),
                _pair(4, 0),
                world=6,
            ),
            (0, 2),
        ),
        Fires(
            readings_case(
                _pair(0, 2, connected=0, no_route=8, origin="gloo by GLOO_SOCKET_IFNAME, dummy0"),
                _pair(4, 2, connected=0, timed_out=8, origin="gloo by GLOO_SOCKET_IFNAME, dummy0"),
                _pair(0, 4),
                _pair(4, 0),
                world=6,
            ),
            (2,),
        ),
        Quiet(readings_case(_pair(0, 2), _pair(2, 0)), "all are open"),
        Quiet(
            readings_case(_pair(0, 2, connected=7, timed_out=1, segments=50, lost=9, pings=20)),
            "packets are lost at random: another finding",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """Addresses that nobody reaches, then hosts and pairs for which some ports are closed."""
        ways = ways_of(s)
        bad = [p for p in ways.pairs if is_blocked(p) and not (p.number("connected") and ways.is_lossy(p))]
        dead = _dead_addresses(bad, ways)
        for (host, address), dead_ways in dead.items():
            origin = f" ({dead_ways[0].text('origin')})" if dead_ways[0]["origin"] else ""
            title = f"{host} cannot be reached at {address}{origin}"
            confidence = 0.75 if dead_ways[0]["is_main"] is False else 0.96
            finding = self._finding(s, dead_ways, (title, confidence, ranks_at(dead_ways, host)))
            yield replace(finding, fixes=(_named_interface(s, dead_ways[0]), *finding.fixes))
        rest = [p for p in bad if not any(p in found for found in dead.values())]
        if not rest:
            return
        host = host_in_all(rest, ways)
        failed = sum(int((p.number("tried") or 0) - (p.number("connected") or 0)) for p in rest)
        tried = sum(int(p.number("tried") or 0) for p in rest)
        certain = all(p.number("measured") == 2 or not p.number("connected") for p in rest)
        title = f"{failed} of {tried} ports are closed {named(rest, host)}"
        yield self._finding(s, rest, (title, 0.95 if certain else 0.8, ranks_at(rest, host)))

    def _finding(self, s: Situation, bad: Sequence[Reading], told: tuple[str, float, tuple[int, ...]]) -> Finding:
        title, confidence, culprits = told
        counts = Counter({o: sum(int(p.number(o) or 0) for p in bad) for o in _OUTCOMES})
        outcomes = "; ".join(f"{n} x {_WORDS[o]}" for o, n in counts.most_common() if n)
        ports = bad[0].text("failed_ports").split()
        port = ports[0] if ports else "<port>"
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=title,
            confidence=confidence,
            culprit_ranks=culprits,
            victim_ranks=s.others(culprits),
            because=f"{outcomes}.{_range(bad)} Backends connect over random ports of that range, whatever the rendezvous does.",
            evidence=cite(bad),
            fixes=(
                Fix(
                    "Allow all TCP ports between the nodes of the job",
                    command=f"nc -l {port}   # on {bad[0].text('peer_host')}; on {bad[0].host}: nc -zv {bad[0].text('address')} {port}",
                    verify="unhang check --only network on all ranks",
                    undo="nothing is changed by the test",
                ),
            ),
        )


def _dead_addresses(bad: Sequence[Reading], ways: Ways) -> dict[tuple[str, str], list[Reading]]:
    """Addresses of a host to which no host could connect, though at least two tried, or though it connected itself."""
    found: dict[tuple[str, str], list[Reading]] = {}
    for pair in ways.pairs:
        found.setdefault((pair.text("peer_host"), pair.text("address")), []).append(pair)
    connects = {p.host for p in ways.pairs if p.number("connected")}
    return {
        key: own
        for key, own in found.items()
        if all(w in bad and not w.number("connected") for w in own) and (len(own) > 1 or key[0] in connects)
    }


def _named_interface(s: Situation, way: Reading) -> Fix:
    """Where nobody reaches an address, it is rather the wrong one than a closed one."""
    variable = "NCCL_SOCKET_IFNAME" if way.text("origin").startswith("nccl") else "GLOO_SOCKET_IFNAME"
    host = way.text("peer_host")
    leads = {m.text("source_interface") for m in s.readings.of("network.master") if m.host == host} - {"", "lo"}
    return Fix(
        "Name the interface that leads to the other nodes",
        setting=f"{variable}={leads.pop() if len(leads) == 1 else '<the one that `ip route get OTHER_NODE` names>'}   # on {host}",
        verify="unhang check --only network on all ranks",
        undo=f"{variable} as it was before",
    )


def _range(bad: Sequence[Reading]) -> str:
    """What the ports that failed have in common, where all of them lie above or below those that are open."""
    failed = sorted(int(port) for p in bad for port in p.text("failed_ports").split())
    opened = sorted(int(port) for p in bad for port in p.text("open_ports").split())
    if len(failed) < 2 or not opened:
        return ""
    between = [port for port in opened if failed[0] < port < failed[-1]]
    return "" if between else f" All that failed lie between {failed[0]} and {failed[-1]}, no open one does."
