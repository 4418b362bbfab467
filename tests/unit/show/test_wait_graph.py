from __future__ import annotations

from tests.unit.show.cases import crash, cycle, hang
from tests.unit.show.odd_cases import large
from unhang.model import WaitEdge, WaitsFor
from unhang.show.wait_graph import wait_graph


def test_equals_are_one_node_and_the_root_comes_first() -> None:
    graph = wait_graph(crash().waits, (2,))
    assert [(n.ranks, n.is_root, n.layer) for n in graph.nodes] == [((2,), True, 0), ((0, 1, 3), False, 1)]
    assert [w.targets for w in graph.nodes[1].waits] == [(2,)]


def test_a_cycle_over_two_groups_is_two_nodes() -> None:
    graph = wait_graph(cycle().waits, (0, 1))
    assert [(n.ranks, n.in_cycle, n.layer) for n in graph.nodes] == [((0, 1), True, 0), ((2, 3), True, 1)]
    assert not any(n.is_apart for n in graph.nodes)


def test_the_culprit_of_a_mismatch_stands_alone() -> None:
    graph = wait_graph(hang().waits, (0,))
    assert [n.ranks for n in graph.nodes] == [(0,), (1, 2, 3)]


def test_members_that_wait_for_each_other_are_one_node() -> None:
    edges = tuple(
        WaitEdge(r, tuple(t for t in range(4) if t != r), "collective", "all_reduce #1", mismatch=True)
        for r in range(4)
    )
    graph = wait_graph(WaitsFor(edges, cycles=((0, 1, 2, 3),)))
    assert [n.ranks for n in graph.nodes] == [(0, 1, 2, 3)]
    assert graph.nodes[0].waits[0].targets == (0, 1, 2, 3)


def test_a_chain_has_one_layer_per_wait_and_a_cap() -> None:
    edges = tuple(WaitEdge(r, (r + 1,), "p2p", f"recv from rank {r + 1}") for r in range(100))
    graph = wait_graph(WaitsFor(edges, roots=(100,)), (100,))
    assert graph.nodes[0].ranks == (100,)
    assert len(graph.nodes) == 24
    assert (graph.left_out, graph.ranks_left_out) == (77, 77)
    short = wait_graph(WaitsFor(edges[97:], roots=(100,)))
    assert {n.ranks[0]: n.layer for n in short.nodes} == {100: 0, 99: 1, 98: 2, 97: 3}


def test_thousands_of_ranks_are_two_nodes() -> None:
    graph = wait_graph(large(world=2048, calls=4, culprit=7).waits, (7,))
    assert [len(n.ranks) for n in graph.nodes] == [1, 2047]


def test_no_waits_no_nodes() -> None:
    assert wait_graph(WaitsFor()).nodes == ()


def test_who_waits_directly_is_shown_however_large_the_sets_behind_are() -> None:
    behind = tuple(WaitEdge(100 * n + k, (n,), "p2p", f"recv from {n}") for n in range(1, 61) for k in range(50))
    direct = tuple(WaitEdge(n, (0,), "collective", "all_reduce #3 of TP") for n in range(1, 61))
    graph = wait_graph(WaitsFor(behind + direct, roots=(0,)), (0,))
    assert [(n.ranks, n.layer) for n in graph.nodes[:2]] == [((0,), 0), (tuple(range(1, 61)), 1)]
    assert {n.layer for n in graph.nodes[2:]} == {2}
    assert graph.ranks_left_out == 50 * graph.left_out > 0


def test_ranks_that_wait_elsewhere_are_said_to_wait_for_none_of_these() -> None:
    edges = (WaitEdge(1, (0,), "p2p", "recv from rank 0"), WaitEdge(2, (3,), "p2p", "a"), WaitEdge(3, (2,), "p2p", "b"))
    waits = WaitsFor(edges, roots=(0,), cycles=((2, 3),))
    assert {n.ranks: n.is_apart for n in wait_graph(waits, (0,)).nodes} == {
        (0,): False,
        (1,): False,
        (2,): True,
        (3,): True,
    }
