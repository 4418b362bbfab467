"""Questions to the graph of waits: cycles, what a rank blocks, which waits can never end. Each takes linear time.

A thousand ranks that wait for the same thousand share one tuple of targets, which is one node between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from unhang.model import WaitEdge, WaitsFor

Node = int | tuple[int, ...]


def _shared(edges: Iterable[WaitEdge]) -> dict[int, tuple[int, ...]]:
    """Edges' targets by identity."""
    return {id(e.targets): e.targets for e in edges if e.targets}


def cycles(edges: Sequence[WaitEdge]) -> tuple[tuple[int, ...], ...]:
    """Strongly connected sets of two or more ranks (iterative Tarjan)."""
    successors: dict[int, list[int]] = {}
    virtual = {identity: -1 - i for i, identity in enumerate(_shared(edges))}  # ranks are not negative
    for edge in edges:
        if edge.targets:
            successors.setdefault(edge.waiter, []).append(virtual[id(edge.targets)])
    for identity, targets in _shared(edges).items():
        successors[virtual[identity]] = list(targets)
    found = []
    for component in _components(successors):
        ranks = tuple(sorted(n for n in component if n >= 0))
        if len(ranks) > 1:
            found.append(ranks)
    return tuple(sorted(found))


def _components(successors: dict[int, list[int]]) -> Iterator[list[int]]:
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for start in sorted(successors):
        if start in index:
            continue
        work = [(start, iter(successors.get(start, ())))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            child = next(targets, None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    yield _popped(node, stack, on_stack)
            elif child not in index:
                index[child] = low[child] = len(index)
                stack.append(child)
                on_stack.add(child)
                work.append((child, iter(successors.get(child, ()))))
            elif child in on_stack:
                low[node] = min(low[node], index[child])


def _popped(node: int, stack: list[int], on_stack: set[int]) -> list[int]:
    component = []
    while True:
        member = stack.pop()
        on_stack.discard(member)
        component.append(member)
        if member == node:
            return component


def _waiters_by_target(graph: WaitsFor) -> tuple[dict[int, list[int]], dict[int, list[WaitEdge]]]:
    """(target -> identities of the sets that it is in, identity -> edges with that set)."""
    sets: dict[int, list[int]] = {}
    for identity, targets in _shared(graph.edges).items():
        for target in targets:
            sets.setdefault(target, []).append(identity)
    edges: dict[int, list[WaitEdge]] = {}
    for edge in graph.edges:
        if edge.targets:
            edges.setdefault(id(edge.targets), []).append(edge)
    return sets, edges


def edges_on(graph: WaitsFor, ranks: Collection[int]) -> dict[int, list[WaitEdge]]:
    """For each of these ranks the waits for it."""
    sets, edges = _waiters_by_target(graph)
    return {rank: [e for identity in sets.get(rank, ()) for e in edges[identity]] for rank in ranks}


def blocked_by(graph: WaitsFor, roots: Collection[int]) -> dict[int, tuple[int, ...]]:
    """For each of these ranks every rank that waits for it, directly or not."""
    sets, edges = _waiters_by_target(graph)
    found = {}
    for root in roots:
        reached, pending, seen = {root}, [root], set()
        while pending:
            for identity in sets.get(pending.pop(), ()):
                if identity not in seen:
                    seen.add(identity)
                    new = {e.waiter for e in edges[identity]} - reached
                    reached |= new
                    pending.extend(new)
        found[root] = tuple(sorted(reached - {root}))
    return found


def never_ending(graph: WaitsFor, gone: Collection[int], may_end: Collection[int]) -> tuple[int, ...]:
    """Ranks of which it is proven that they wait for ever.

    The greatest set in which every possible wait of each member is for another member, for a process that is `gone`, or for a
    peer that made another call at the same position. `may_end`: ranks that also wait for what anybody may provide.
    """
    candidates = {e.waiter for e in graph.edges if e.targets} - set(may_end)
    sets, edges = _waiters_by_target(graph)
    hopeless = candidates | set(gone)
    alive = {identity: sum(t in hopeless for t in targets) for identity, targets in _shared(graph.edges).items()}
    pending = list(alive)
    while pending:
        identity = pending.pop()
        if alive[identity]:
            continue
        for waiter in {e.waiter for e in edges[identity] if not e.mismatch} & candidates:
            candidates.discard(waiter)
            if waiter not in gone:
                for other in sets.get(waiter, ()):
                    alive[other] -= 1
                    pending.append(other)
    return tuple(sorted(candidates))
