"""The parts of the pairwise tests: who with whom, what is listened on, what counts as bad, and what gloo and NCCL choose."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.check.test_participants import together
from unhang.check import network
from unhang.check.areas import CheckOptions, Member, Participants
from unhang.check.checking import check
from unhang.check.network import Choice, fits, gloo_choice, nccl_choice, peers_of, read_pairs
from unhang.check.network.addresses import Interface, Resolved, can_bind
from unhang.check.network.measuring import TOKEN_BYTES, Endpoint, Listening, better, flat, measure, port_range
from unhang.model import Reading
from unhang.rules.machine.pairs import Ways, host_in_all

LO = Interface("lo", "loopback", addresses=("127.0.0.1", "::1"))
ETH = Interface("eth0", addresses=("10.0.0.1", "fd00::1"))
DOCKER = Interface("docker0", "container-bridge", addresses=("172.17.0.1",))
IB = Interface("ib0", "infiniband", addresses=("10.1.0.1",))
DOWN = Interface("eth1", is_up=False, has_carrier=False, addresses=("10.2.0.1",))
BARE = Interface("eth2", addresses=())
ALL = (LO, DOCKER, ETH, DOWN, BARE)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 31, 32])
def test_every_pair_meets_once_and_nobody_is_in_two_at_the_same_time(size: int) -> None:
    peers = [peers_of(i, size) for i in range(size)]
    for turn in zip(*peers, strict=True):
        assert all(turn[peer] == i for i, peer in enumerate(turn) if peer is not None)
    met = [frozenset((i, p)) for i in range(size) for p in peers[i] if p is not None]
    assert len(met) == size * (size - 1)
    assert len(set(met)) == size * (size - 1) // 2


def test_many_hosts_measure_along_strides() -> None:
    assert peers_of(99, 100) == (0, 1, 3, 7, 15, 31, 63)
    for turn in range(7):
        assert sorted(peers_of(i, 100)[turn] or 0 for i in range(100)) == list(range(100))
    assert peers_of(0, 1) == ()


def endpoint(listening: Listening, token: bytes | None = None) -> Endpoint:
    return Endpoint(1, "node1", "key", (token or listening.token).hex(), listening.ports, {"127.0.0.1": "a test"})


def test_a_way_is_measured_and_nothing_is_left_open() -> None:
    with Listening(("127.0.0.1",)) as listening:
        ports = listening.ports["127.0.0.1"]
        (table,) = measure(endpoint(listening))
    fields = flat(table)
    assert (fields["tried"], fields["connected"], fields["failed_ports"]) == (8, 8, "")
    assert fields["came_bytes"] == fields["sent_bytes"] > 0
    assert "stalled" not in fields
    assert fields["rtt_min_ms"] <= fields["rtt_ms"]
    first, last = port_range()
    width = (last - first) // 8
    assert [(p - first) // width for p in ports] == list(range(8))  # spread, so that a closed range is not missed
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()


@pytest.mark.skipif(not can_bind("::1"), reason="no IPv6 here")
def test_a_way_over_ipv6() -> None:
    with Listening(("::1",)) as listening:
        (table,) = measure(endpoint(listening))
    assert flat(table)["connected"] == 8
    assert table["came_bytes"] == table["sent_bytes"] > 0


def test_who_does_not_know_the_token_gets_nothing() -> None:
    with Listening(("127.0.0.1",)) as listening:
        with socket.create_connection(("127.0.0.1", listening.ports["127.0.0.1"][0]), 5) as stranger:
            stranger.sendall(b"x" * TOKEN_BYTES + b"P")
            assert stranger.recv(1) == b""
        (table,) = measure(endpoint(listening, bytes(TOKEN_BYTES)))
    assert set(table["outcomes"].values()) == {"not ours"}
    assert "pings" not in table


def test_a_port_that_refuses_is_told() -> None:
    with Listening(("127.0.0.1",)) as listening:
        one = endpoint(listening)
    (table,) = measure(one)
    assert flat(table)["refused"] == 8


def test_of_two_measurements_only_what_is_always_bad_remains() -> None:
    first = {"outcomes": {"1": "timed out", "2": "timed out", "3": "connected"}, "pings": 9, "segments": 10, "lost": 4}
    second = {"outcomes": {"1": "connected", "2": "refused", "3": "timed out"}, "pings": 40, "segments": 40, "lost": 0}
    merged = better(
        first | {"rtt_ms": 9.0, "rtt_min_ms": 8.0, "stalled": True}, second | {"rtt_ms": 1.0, "came_bytes": 5}
    )
    assert merged["outcomes"] == {"1": "connected", "2": "timed out", "3": "connected"}
    assert (merged["rtt_ms"], merged["lost"], merged["measured"]) == (1.0, 0, 2)
    assert "stalled" not in merged


def pair(a: int, b: int, **fields: Any) -> Reading:
    usual = {"peer_rank": b, "peer_host": f"n{b}", "tried": 8, "connected": 8, "rtt_min_ms": 0.3}
    return Reading("network.pair", f"n{a} -> n{b}", {**usual, "bandwidth_mbytes_s": 1000.0, **fields}, a, f"n{a}")


def ways(size: int, bad: Mapping[tuple[int, int], Mapping[str, Any]]) -> Ways:
    return Ways([pair(a, b, **bad.get((a, b), {})) for a in range(size) for b in range(size) if a != b])


def test_one_bad_host_of_three_is_found_although_most_ways_are_its_own() -> None:
    slow = {(a, b): {"rtt_min_ms": 9.0} for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))}
    found = ways(3, slow)
    bad = [p for p in found.pairs if found.is_slow(p)]
    assert len(bad) == 4
    assert host_in_all(bad, found) == "n1"


def test_two_halls_of_the_same_size_are_no_fault() -> None:
    far = {(a, b): {"rtt_min_ms": 6.0} for a in range(8) for b in range(8) if (a < 4) != (b < 4)}
    found = ways(8, far)
    assert not any(found.is_suspect(p) for p in found.pairs)


def test_a_busy_machine_is_given_more_room() -> None:
    narrow = {"bandwidth_mbytes_s": 100.0}
    calm, busy = ways(4, {(0, 1): narrow}), ways(4, {(0, 1): {**narrow, "cpu_pressure": 0.9}})
    assert [p.subject for p in calm.pairs if calm.is_narrow(p)] == ["n0 -> n1"]
    assert [p.subject for p in busy.pairs if busy.is_narrow(p)] == []


def test_one_process_tests_no_pairs() -> None:
    (told,) = read_pairs(Participants(Member(host="here")), {})
    assert "one host" in getattr(told, "reason", "")


def tables(peer: Endpoint, mbytes_s: float = 100.0) -> list[dict[str, Any]]:
    """A measurement, as if it had been made."""
    common = {"peer_rank": peer.rank, "peer_host": peer.host, "address": "a", "outcomes": {"1": "connected"}}
    return [{**common, "pings": 9, "rtt_ms": 0.2, "rtt_min_ms": 0.1, "came_bytes": 1, "bandwidth_mbytes_s": mbytes_s}]


def test_forty_hosts_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "measure", tables)
    found = together(40, list(range(40)), lambda party: list(read_pairs(party, {})))
    peers = [int(r["peer_rank"]) for r in found[39] if isinstance(r, Reading)]
    assert peers == [0, 1, 3, 7, 15, 31]
    assert sum(len(readings) for readings in found.values()) == 40 * 6


def test_one_rank_speaks_for_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "measure", tables)

    def act(party: Participants) -> list[object]:
        party.member = replace(party.member, host=f"node{party.member.rank // 2}")
        return list(read_pairs(party, {}))

    found = together(4, [0, 1, 2, 3], act)
    ways = {rank: [(r.subject, r["peer_rank"]) for r in each if isinstance(r, Reading)] for rank, each in found.items()}
    assert ways == {0: [("node0 -> node1", 2)], 1: [], 2: [("node1 -> node0", 0)], 3: []}


def test_what_stands_out_is_measured_again_before_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: dict[str, int] = {}

    def unlucky(peer: Endpoint) -> list[dict[str, Any]]:
        turns[peer.host] = turns.get(peer.host, 0) + 1
        return tables(peer, 1.0 if peer.rank == 3 and turns[peer.host] == 3 else 100.0)

    monkeypatch.setattr(network, "measure", unlucky)
    found = together(4, [0, 1, 2, 3], lambda party: list(read_pairs(party, {})))
    readings = [r for each in found.values() for r in each if isinstance(r, Reading)]
    assert len(readings) == 12
    assert {(min(r.rank or 0, 3), 3) for r in readings if r["measured"] == 2 and r["peer_rank"] == 3} != set()
    assert not any(Ways(readings).is_suspect(r) for r in readings)


def test_a_host_that_stops_in_the_middle_is_not_called_a_bad_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "measure", tables)
    monkeypatch.setattr(network, "_MEET_LIMIT_S", 1.0)
    monkeypatch.setattr(network, "_PEER_LIMIT_S", 0.2)
    monkeypatch.setattr(network, "_budget_s", lambda hosts: 1.0)
    monkeypatch.setattr(network, "_GRACE_S", 0.5)

    def act(party: Participants) -> list[object]:
        if party.member.rank == 2:  # it tells where it listens, and is not seen again
            party.exchange("network/hosts", "node2", 1)
            party.exchange("network/endpoints", {"token": "00", "ports": {}, "origin": {}, "host": "node2"}, 1)
            return []
        return list(read_pairs(party, {}))

    found = together(3, [0, 1, 2], act)
    assert [r["peer_rank"] for r in found[0] if isinstance(r, Reading)] == [1]
    (lack,) = [r for r in found[0] if not isinstance(r, Reading)]
    assert "1 of 2 ways were not tested" in getattr(lack, "reason", "")


def test_this_machine_has_no_finding() -> None:
    checked = check(CheckOptions(areas=("network",)), {}, lambda text: None)
    assert checked.diagnosis is not None
    assert [f.title for f in checked.diagnosis.findings if f.severity != "note"] == []
    verdicts = {o.rule: (o.verdict, o.reason) for o in checked.diagnosis.outcomes}
    assert verdicts["interface-not-usable"][0] == "pass"
    assert verdicts["slow-way"][0] == "skipped"
    assert "one process" in verdicts["slow-way"][1]


@pytest.mark.parametrize(
    ("pattern", "name", "is_meant"),
    [
        ("eth", "eth0", True),
        ("=eth", "eth0", False),
        ("=eth0,ib0", "ib0", True),
        ("^docker,lo", "docker0", False),
        ("^docker,lo", "eth0", True),
        ("^=eth0", "eth01", True),
        ("eth0:9000", "eth0", True),
    ],
)
def test_the_patterns_of_nccl(pattern: str, name: str, is_meant: bool) -> None:
    assert fits(pattern, name) is is_meant


@pytest.mark.parametrize(
    ("environ", "interfaces", "expected"),
    [
        ({}, ALL, ("eth0", "10.0.0.1", "")),
        ({}, (*ALL, IB), ("ib0", "10.1.0.1", "")),
        ({}, (LO, DOCKER), ("docker0", "172.17.0.1", "")),
        ({}, (LO,), ("lo", "127.0.0.1", "")),
        ({"NCCL_SOCKET_IFNAME": "^lo,docker"}, ALL, ("eth0", "10.0.0.1", "")),
        ({"NCCL_SOCKET_IFNAME": "=eth1"}, ALL, ("eth1", "10.2.0.1", "down")),
        ({"NCCL_SOCKET_IFNAME": "ens"}, ALL, ("", "", "absent")),
        ({"NCCL_SOCKET_IFNAME": "eth2"}, ALL, ("eth2", "", "no address")),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, ALL, ("eth0", "fd00::1", "")),
        ({}, (BARE,), ("", "", "no address")),
    ],
)
def test_what_nccl_chooses(
    environ: dict[str, str], interfaces: tuple[Interface, ...], expected: tuple[str, str, str]
) -> None:
    choice = nccl_choice(environ, interfaces)
    assert (choice.interface, choice.address, choice.problem) == expected


def test_what_gloo_chooses() -> None:
    def gloo(value: str = "", *addresses: str, usable: str = "") -> Choice:
        environ = {"GLOO_SOCKET_IFNAME": value} if value else {}
        return gloo_choice(environ, ALL, Resolved("here", addresses), lambda a: a.startswith(usable))

    assert gloo("eth0").address == "10.0.0.1"
    assert (gloo("eth9").problem, gloo("eth1").problem, gloo("eth2").problem) == ("absent", "down", "no address")
    assert gloo("eth0,eth9").problem == "absent"
    by_name = gloo("", "127.0.1.1", "10.0.0.1")
    assert (by_name.how, by_name.interface, by_name.address) == ("host name", "lo", "127.0.1.1")
    assert gloo("", "192.0.2.9", "10.0.0.1", usable="10.").interface == "eth0"
    assert gloo("", "192.0.2.9", usable="10.").how == "fallback"
    assert gloo("", "fd00::1").family == "IPv6"
