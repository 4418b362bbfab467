"""Linear-time answers about the graph of waits equal the plain definitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unhang.analyze.waits.waits_for import blocked_by, cycles, edges_on, never_ending
from unhang.model import WaitEdge, WaitsFor

RANKS = st.integers(0, 6)


@st.composite
def graphs(draw: st.DrawFn) -> WaitsFor:
    shared = draw(st.lists(st.lists(RANKS, min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=4))
    edges = draw(st.lists(st.tuples(RANKS, st.sampled_from(shared), st.booleans()), max_size=10))
    return WaitsFor(
        tuple(
            WaitEdge(w, tuple(t for t in targets if t != w), "collective", "x", mismatch=m) for w, targets, m in edges
        )
    )


def reach(graph: WaitsFor, start: int) -> set[int]:
    seen: set[int] = set()
    pending = [start]
    while pending:
        node = pending.pop()
        for edge in graph.edges:
            if edge.waiter == node:
                new = set(edge.targets) - seen
                seen |= new
                pending += new
    return seen


@given(graphs())
def test_cycles_are_the_sets_that_reach_each_other(graph: WaitsFor) -> None:
    reached = {rank: reach(graph, rank) for rank in range(7)}
    expected = {
        tuple(b for b in range(7) if b == a or (b in reached[a] and a in reached[b]))
        for a in range(7)
        if a in reached[a]
    }
    assert set(cycles(graph.edges)) == {c for c in expected if len(c) > 1}


@given(graphs())
def test_what_a_rank_blocks(graph: WaitsFor) -> None:
    expected = {rank: tuple(r for r in range(7) if r != rank and rank in reach(graph, r)) for rank in range(7)}
    assert blocked_by(graph, range(7)) == expected
    on = edges_on(graph, range(7))
    assert all(set(map(id, on[r])) == {id(e) for e in graph.edges if r in e.targets} for r in range(7))


@given(graphs(), st.sets(RANKS, max_size=2), st.sets(RANKS, max_size=2))
def test_the_greatest_set_without_an_end(graph: WaitsFor, gone: set[int], may_end: set[int]) -> None:
    candidates = {e.waiter for e in graph.edges if e.targets} - may_end
    while True:
        kept = {
            r
            for r in candidates
            if all(
                e.mismatch or set(e.targets) & (candidates | gone) for e in graph.edges if e.waiter == r and e.targets
            )
        }
        if kept == candidates:
            break
        candidates = kept
    assert never_ending(graph, gone, may_end) == tuple(sorted(candidates))
