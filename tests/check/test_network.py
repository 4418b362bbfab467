"""The network of four nodes, with real faults made by a switch in user space, through the whole check."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.check.namespaces import WHY_NOT, Cluster

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def started() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def nodes(started: Cluster) -> Iterator[Cluster]:
    """Without faults, before and after each test."""
    yield started
    started.fault()
    started.set_hosts()


def found(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    """Rules and the ranks that they accuse; no rule may have failed."""
    assert [o for o in report["report"]["outcomes"] if o["verdict"] == "error"] == []
    return [(f["rule"], f["culprit_ranks"]) for f in report["report"]["findings"]]


def test_a_healthy_cluster_has_no_finding_and_all_ways_are_measured(nodes: Cluster) -> None:
    report = nodes.check()[0]
    assert found(report) == []
    assert report["exit_code"] == 0
    ways = [r for r in report["readings"] if r[0] == "network.pair"]
    assert {(rank, fields["peer_rank"]) for _, _, fields, rank in ways} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }
    assert all(w[2]["connected"] == 8 and w[2]["came_bytes"] == w[2]["sent_bytes"] for w in ways)
    dropped = [nodes.call(i, "cat", "/sys/class/net/eth0/statistics/tx_dropped").strip() for i in range(4)]
    assert dropped == ["0"] * 4  # the switch took all that it was given
    passed = {o["rule"] for o in report["report"]["outcomes"] if o["verdict"] == "pass"}
    assert {"ports-blocked", "path-mtu", "lossy-way", "slow-way", "address-not-unique", "master-name"} <= passed


def test_a_closed_range_of_ports_between_two_nodes(nodes: Cluster) -> None:
    nodes.fault(0, 2, ports=[45_000, 61_000])
    report = nodes.check()[0]
    assert found(report) == [("ports-blocked", [0, 2])]
    first = report["report"]["findings"][0]
    assert "between node0 and node2" in first["title"]
    assert "no answer" in first["because"]
    failed = [int(p) for r in report["readings"] for p in str(r[2].get("failed_ports", "")).split()]
    assert failed
    assert all(45_000 <= port <= 61_000 for port in failed)


@pytest.mark.parametrize(
    ("fault", "rule", "words"),
    [
        ({"delay_ms": 15}, "slow-way", "the round trip takes 3"),
        ({"drop": 0.12}, "lossy-way", "of the packets are lost"),
        ({"max_bytes": 1400}, "path-mtu", "large packets vanish"),
        ({"mbytes_s": 0.7}, "slow-way", "MB/s get through"),
    ],
)
def test_a_bad_way_between_two_nodes_is_named(nodes: Cluster, fault: dict[str, float], rule: str, words: str) -> None:
    nodes.fault(1, 3, **fault)
    report = nodes.check()[0]
    assert found(report) == [(rule, [1, 3])]
    title = report["report"]["findings"][0]["title"]
    assert words in title
    assert "node1" in title
    assert "node3" in title
    assert report["seconds"] < 40


def test_a_node_that_never_comes_is_named_and_the_rest_is_tested(nodes: Cluster) -> None:
    report = nodes.check(absent=[2], join_limit_s=3)[0]
    assert found(report) == [("rank-never-came", [2])]
    assert len([r for r in report["readings"] if r[0] == "network.pair"]) == 6


def test_a_host_name_that_resolves_to_loopback(nodes: Cluster) -> None:
    nodes.set_hosts({2: {"node2": "127.0.1.1"}})
    report = nodes.check()[0]
    assert found(report) == [("address-not-unique", [2])]
    fix = report["report"]["findings"][0]["fixes"][0]
    assert fix["setting"] == "GLOO_SOCKET_IFNAME=eth0"


def test_a_master_that_resolves_to_the_node_itself_is_told_there(nodes: Cluster) -> None:
    nodes.set_hosts({2: {"node0": "127.0.1.1"}})
    reports = nodes.check(join_limit_s=3)
    assert found(reports[0]) == [("rank-never-came", [2])]
    assert ("master-name", [2]) in found(reports[2])
    assert "the host itself" in reports[2]["report"]["findings"][0]["title"]


def test_interfaces_named_by_variables(nodes: Cluster) -> None:
    """One that is not there; one that is there, but to which no other node has a route."""
    nodes.call(1, "ip", "link", "add", "inner0", "type", "veth", "peer", "name", "inner1")
    nodes.call(1, "ip", "address", "add", "10.99.0.1/24", "dev", "inner0")
    nodes.call(1, "ip", "link", "set", "inner0", "up")
    nodes.call(1, "ip", "link", "set", "inner1", "up")
    report = nodes.check(environ={1: {"GLOO_SOCKET_IFNAME": "inner0"}, 3: {"GLOO_SOCKET_IFNAME": "ens9"}})[0]
    assert sorted(found(report)) == [("interface-not-usable", [3]), ("ports-blocked", [1])]
    titles = {f["rule"]: f["title"] for f in report["report"]["findings"]}
    assert titles["interface-not-usable"].startswith("GLOO_SOCKET_IFNAME=ens9: there is no such interface on node3")
    assert "node1 cannot be reached at 10.99.0.1" in titles["ports-blocked"]
    fixes = {f["rule"]: f["fixes"][0]["setting"] for f in report["report"]["findings"]}
    assert all(setting.startswith("GLOO_SOCKET_IFNAME=eth0") for setting in fixes.values())
    nodes.call(1, "ip", "link", "delete", "inner0")


@pytest.mark.whole
@pytest.mark.torchrun
def test_torchrun_on_four_nodes(nodes: Cluster) -> None:
    """The command as it is meant to be used; the agents hold the store, and one way is closed."""
    nodes.fault(1, 2, ports=[32_000, 61_000])
    out = nodes.torchrun("-m", "unhang", "check", "--only", "network", "--format", "json")
    report = json.loads(out[out.index("{") :])
    assert [(f["rule"], f["culprit_ranks"]) for f in report["findings"]] == [("ports-blocked", [1, 2])]
