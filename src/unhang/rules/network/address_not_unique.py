"""Rule: a backend would tell the other nodes an address that leads elsewhere: loopback, or one that several hosts have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.network.pair_readings import is_only_planned, spans_hosts
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_HOST_NAME, _FALLBACK = "host name", "fallback"


class AddressNotUnique(ReadingRule):
    """On a job of several nodes, gloo or NCCL would tell its peers a loopback address, or one that other hosts have too.

    What it detects:
        The address that the backend will choose by itself: gloo the one of the host's own name, NCCL that of the first
        interface. It is 127.x on a job of several hosts, or the same on two hosts (a bridge of containers or of virtual
        machines has the same address everywhere).

    Why it hangs:
        The peers connect to themselves instead, are refused, and retry until the timeout. The rendezvous works all the same:
        it uses another address.

    How to confirm:
        `getent ahosts $(hostname)` on that node; `ip -br addr` on two nodes.

    How to fix:
        Name the interface: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME. Or take the line `127.0.1.1 NAME` out of /etc/hosts.

    Sources:
        torch ProcessGroupGloo, createDefaultDevice; NCCL user guide, NCCL_SOCKET_IFNAME.
    """

    id = "address-not-unique"
    cause = "network-interface"
    reads = ("network.choice",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("network.choice gloo", how="host name", address="10.0.0.1", is_main=True),
                read(
                    "network.choice gloo",
                    rank=2,
                    how="host name",
                    asked="node1",
                    address="127.0.1.1",
                    is_loopback=True,
                    is_main=True,
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read(
                    "network.choice nccl",
                    rank=rank,
                    how="order",
                    interface="virbr0",
                    address="192.168.122.1",
                    is_main=True,
                    network_id=f"machine{rank}",
                )
                for rank in (0, 2)
            ),
            (0, 2),
        ),
        Quiet(
            readings_case(
                read("setup.job here", nodes=1),
                read("network.choice gloo", how="host name", address="127.0.1.1", is_loopback=True, is_main=True),
            ),
            "loopback is enough on one node",
        ),
        Quiet(
            readings_case(
                read(
                    "network.choice gloo", rank=r, how="host name", address="10.0.0.1", network_id="same", is_main=True
                )
                for r in (0, 2)
            ),
            "two containers that share the network of their host",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """Loopback addresses first, then those that several hosts have."""
        if not spans_hosts(s):
            return
        for backend in ("gloo", "nccl"):
            choices = [c for c in s.readings.of("network.choice", subject=backend) if not c["problem"] and c["address"]]
            loops = [c for c in choices if c["is_loopback"] is True]
            if loops:
                yield self._finding(
                    s, backend, loops, f"a loopback address ({loops[0].text('address')})", _why(loops[0])
                )
            by_address: dict[str, list[Reading]] = {}
            for choice in choices:
                if choice["is_loopback"] is not True:
                    by_address.setdefault(choice.text("address"), []).append(choice)
            for address, same in by_address.items():
                if len({c.text("network_id") for c in same}) > 1:
                    where = same[0].text("interface")
                    what = f"{address} ({where}), which {len({c.host for c in same})} hosts have"
                    yield self._finding(s, backend, same, what, "The address does not tell these hosts apart.")

    def _finding(self, s: Situation, backend: str, choices: Sequence[Reading], what: str, why: str) -> Finding:
        confidence = 0.95 if choices[0]["is_main"] else 0.72
        variable = f"{backend.upper()}_SOCKET_IFNAME"
        ways = {w.text("source_interface") for w in s.readings.of("network.master")} - {"", "lo"}
        name = ways.pop() if len(ways) == 1 else "<the interface that `ip route get OTHER_NODE` names>"
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{backend} on {hosts_of(choices)} would tell its peers {what}",
            confidence=min(confidence, 0.72) if is_only_planned(s) else confidence,
            culprit_ranks=ranks_of(choices),
            victim_ranks=s.others(ranks_of(choices)),
            because=f"{why} The ranks of other hosts cannot connect to it, although the rendezvous works.",
            evidence=cite(choices),
            fixes=(
                Fix(
                    "Name the interface that connects the hosts",
                    setting=f"{variable}={name}",
                    verify="unhang check --only network on all ranks",
                    undo=f"unset {variable}",
                ),
            ),
        )


def _why(choice: Reading) -> str:
    how = choice.text("how")
    if how == _HOST_NAME:
        return f"The name of that host, {choice.text('asked')}, resolves to {choice.text('address')} there."
    if how == _FALLBACK:
        return f"The name of that host, {choice.text('asked')}, does not resolve to an address of it, and gloo falls back to 127.0.0.1."
    return f"That is what {how} leads to."
