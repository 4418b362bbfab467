"""Rule: a variable names a network interface that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_ABSENT, _DOWN, _NO_ADDRESS = "absent", "down", "no address"
_WORDS = {_ABSENT: "there is no such interface", _DOWN: "that interface is down", _NO_ADDRESS: "it has no address"}


class InterfaceNotUsable(ReadingRule):
    """GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface that is not there, is down, or has no address.

    What it detects:
        The value of the variable, read as gloo (a name) or NCCL (prefixes, `=`, `^`) reads it, against the interfaces.

    Why it hangs:
        The backend fails to start on that node, or listens where nobody reaches it; the ranks of the other nodes wait for it.

    How to confirm:
        `ip -br addr` on that node: the interface, its state and its addresses.

    How to fix:
        Name the interface that leads to the other nodes: `ip route get OTHER_NODE` tells it. Names differ between machines.

    Sources:
        NCCL user guide, NCCL_SOCKET_IFNAME; torch ProcessGroupGloo, GLOO_SOCKET_IFNAME.
    """

    id = "interface-not-usable"
    cause = "network-interface"
    reads = ("network.choice",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("network.interface eth0", rank=2, is_up=True, addresses="10.0.0.2"),
                read(
                    "network.choice gloo",
                    rank=2,
                    how="GLOO_SOCKET_IFNAME",
                    asked="ens5",
                    interface="ens5",
                    problem="absent",
                    is_main=True,
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read(
                    "network.choice nccl",
                    how="NCCL_SOCKET_IFNAME",
                    asked="ib",
                    interface="ib0",
                    problem="down",
                    is_main=True,
                )
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("network.choice gloo", how="GLOO_SOCKET_IFNAME", asked="eth0", interface="eth0", problem="")
            ),
            "the interface is there",
        ),
        Quiet(
            readings_case(read("network.choice nccl", how="order", asked="", problem="no address", is_main=True)),
            "no variable names anything",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per value and problem, for all hosts alike."""
        groups: dict[tuple[str, str, str], list[Reading]] = {}
        for choice in s.readings.of("network.choice"):
            if choice["problem"] and choice.text("how").endswith("_IFNAME"):
                groups.setdefault((choice.text("how"), choice.text("asked"), choice.text("problem")), []).append(choice)
        for (variable, asked, problem), choices in groups.items():
            yield self._finding(s, variable, asked, problem, choices)

    def _finding(self, s: Situation, variable: str, asked: str, problem: str, choices: Sequence[Reading]) -> Finding:
        is_idle = variable.startswith("NCCL") and not any(c["is_main"] for c in choices)
        hosts = {c.host for c in choices}
        there = [
            i for i in s.readings.of("network.interface") if i.host in hosts and i["addresses"] and i["is_up"] is True
        ]
        name = choices[0].text("interface") or asked
        of = f" ({name})" if name != asked else ""
        return Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{variable}={asked}{of}: {_WORDS.get(problem, problem)} on {hosts_of(choices)}",
            confidence=0.6 if is_idle else 0.9 if problem == _DOWN else 0.95,
            culprit_ranks=ranks_of(choices),
            victim_ranks=s.others(ranks_of(choices)),
            because="The backend cannot start there, or listens where nobody reaches it."
            + (" No device is here that NCCL could use." if is_idle else ""),
            evidence=cite([*choices, *there]),
            fixes=(
                Fix(
                    "Name the interface that leads to the other nodes",
                    setting=f"{variable}={_suggested(s, hosts)}",
                    verify="unhang check --only network",
                    undo=f"{variable}={asked}",
                ),
            ),
        )


def _suggested(s: Situation, hosts: set[str]) -> str:
    """The interface that leads to the master, or the only one that has an address for others."""
    ways = {r.text("source_interface") for r in s.readings.of("network.master") if r.host in hosts}
    names = {
        i.subject
        for i in s.readings.of("network.interface")
        if i.host in hosts and i["is_up"] is True and i["addresses"] and i["kind"] in ("device", "infiniband")
    }
    for found in (ways - {"", "lo"}, names):
        if len(found) == 1:
            return found.pop()
    return "<the interface that `ip route get OTHER_NODE` names>"
