"""Rule: the name of the master leads to nowhere, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.pair_readings import is_only_planned, spans_hosts
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_SLOW_S = 1.0
_NUMERIC = ("127.", "localhost", "::1")


class MasterName(ReadingRule):
    """MASTER_ADDR does not resolve, resolves to the wrong host, has no way to it, or takes long.

    What it detects:
        What each host gets for MASTER_ADDR: nothing, a loopback address on a job of several hosts, only IPv6 addresses on a
        host without IPv6, no route, other addresses than the rest, or an answer after more than a second.

    Why it hangs:
        The rank looks for the store on the wrong host, or not at all, until the timeout of the rendezvous (300 s or more);
        all others wait for it there.

    How to confirm:
        `getent ahosts $MASTER_ADDR` and `ip route get ADDRESS` on that node and on a good one.

    How to fix:
        An address that means the same on all nodes: an IP address, or a name that the name servers know. `localhost` is right
        on one node only.

    Sources:
        torch/distributed/run.py: --master-addr, --rdzv-endpoint.
    """

    id = "master-name"
    cause = "rendezvous-endpoint"
    reads = ("network.master",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("network.master node0", addresses="10.0.0.1", is_own=True),
                read("network.master node0", rank=2, addresses="", error="Name or service not known"),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("setup.job here", nodes=2),
                read("network.master node0", addresses="127.0.1.1", is_own=True, is_loopback=True),
                read("network.master node0", rank=2, addresses="127.0.1.1", is_own=True, is_loopback=True),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("network.master node0", families="IPv6", own_families="IPv4", addresses="fd00::1", is_own=False)
            ),
            (0,),
        ),
        Fires(
            readings_case(
                read("network.master node0", addresses="10.0.0.1", is_own=True),
                read("network.master node0", rank=2, addresses="10.0.0.1"),
                read("network.master node0", rank=4, addresses="10.7.0.1"),
                world=6,
            ),
            (4,),
        ),
        Quiet(
            readings_case(
                read("network.master node0", addresses="127.0.1.1", is_own=True, is_loopback=True),
                read("network.master node0", rank=2, addresses="10.0.0.1"),
            ),
            "the master may know itself as 127.0.1.1: its store listens on all addresses",
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=1),
                read("network.master localhost", addresses="127.0.0.1", is_own=True, is_loopback=True),
            ),
            "one node",
        ),
        Quiet(
            readings_case(
                read("network.master node0", addresses="10.0.0.1 fd00::1", is_own=True),
                read("network.master node0", rank=2, addresses="10.0.0.1", took_s=0.2),
            ),
            "they have an address in common",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """The gravest problem of each host; hosts with the same problem are one finding."""
        masters = s.readings.of("network.master")
        groups: dict[tuple[str, float], list[Reading]] = {}
        for master in masters:
            if problem := self._problem(s, master):
                groups.setdefault(problem, []).append(master)
        if not groups and (odd := _odd(masters)):
            groups[f"resolves to {odd[0].text('addresses')}, unlike on the other hosts", 0.75] = list(odd)
        for (what, confidence), found in groups.items():
            yield self._finding(s, what, confidence, found)

    def _problem(self, s: Situation, master: Reading) -> tuple[str, float] | None:
        """What is wrong with one host's view, and how sure that is."""
        if master["error"]:
            return f"does not resolve: {master.text('error')}", 0.96
        if master["is_loopback"] is True and spans_hosts(s) and _must_be_elsewhere(s, master):
            return f"resolves to {master.text('addresses')}, the host itself", 0.95
        if master["is_loopback"] is True and master["connect"] and master["connect"] != "connected":
            return f"resolves to {master.text('addresses')}, the host itself, where nobody holds the store", 0.95
        if master["families"] == "IPv6" and master["own_families"] == "IPv4":
            return "has only IPv6 addresses, and the host has none", 0.95
        if master["route_error"]:
            return f"has no route: {master.text('route_error')}", 0.95
        if master["connect"] and master["connect"] != "connected":
            return f"does not answer: a connection to its port is {_worded(master.text('connect'))}", 0.95
        if (master.number("took_s") or 0) > _SLOW_S:
            return f"takes {master.number('took_s'):.1f} s to resolve", 0.75
        return None

    def _finding(self, s: Situation, what: str, confidence: float, found: Sequence[Reading]) -> Finding:
        name = found[0].subject
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"MASTER_ADDR={name} {what} on {hosts_of(found)}",
            confidence=confidence,
            culprit_ranks=ranks_of(found),
            victim_ranks=s.others(ranks_of(found)),
            because="The ranks there look for the store of rank 0 at that address; the others wait for them.",
            evidence=cite(s.readings.of("network.master")),
            fixes=(
                Fix(
                    "Give an address that means the same on all nodes",
                    setting="MASTER_ADDR=<IP address of the node of rank 0 on the network that the nodes share>",
                    verify="unhang check --only network on all ranks",
                    undo=f"MASTER_ADDR={name}",
                ),
            ),
        )


def _worded(outcome: str) -> str:
    return {"timed out": "dropped (no answer)", "refused": "refused"}.get(outcome, outcome)


def _must_be_elsewhere(s: Situation, master: Reading) -> bool:
    """Whether the master is surely another host: rank 0 is on one, or the name says loopback on any host."""
    if master.subject.startswith(_NUMERIC):
        return master.rank != 0 or is_only_planned(s)
    holders = {r.host for r in s.readings.of("network.master") if r.rank == 0}
    return bool(holders) and master.host not in holders


def _odd(masters: Sequence[Reading]) -> tuple[Reading, ...]:
    """Those that share no address with the majority, where there is one."""
    found = [(m, set(m.text("addresses").split())) for m in masters if m["addresses"] and m["is_loopback"] is not True]
    if len(found) < 3:
        return ()
    usual = max((addresses for _, addresses in found), key=lambda a: sum(bool(a & b) for _, b in found))
    odd = tuple(m for m, addresses in found if not addresses & usual)
    return odd if 2 * len(odd) < len(found) else ()
