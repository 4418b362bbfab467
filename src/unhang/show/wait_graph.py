"""The waits-for graph folded to a few nodes, and their places on a page. Pure: the same waits give the same picture."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from unhang.model import Case, WaitEdge, WaitsFor
from unhang.model.rank_sets import count_ranks

_MOST_NODES = 24


@dataclass(frozen=True, slots=True)
class FoldedWait:
    """What every rank of a node waits for."""

    what: str
    kind: str
    targets: tuple[int, ...]
    mismatch: bool
    since_ns: int | None


@dataclass(frozen=True, slots=True)
class WaitNode:
    """Ranks in the same situation. `layer` counts waits from the root; `slot` counts nodes within the layer."""

    ranks: tuple[int, ...]
    waits: tuple[FoldedWait, ...]
    is_root: bool
    in_cycle: bool
    layer: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Nodes, arrows between their numbers (waiter, awaited, which wait), and how many nodes were left out."""

    nodes: tuple[WaitNode, ...] = ()
    arrows: tuple[tuple[int, int, int], ...] = ()
    left_out: int = 0
    ranks_left_out: int = 0


def without_wait(ranks: Sequence[int], case: Case) -> str:
    """What is said of ranks of which no wait is known: only of one that was seen it is known that it waits for nobody."""
    unknown = [r for r in ranks if r not in case.ranks]
    if not set(ranks).difference(case.out_of_sight):
        return "not seen from here"
    if len(unknown) == len(ranks):
        return "nothing is known of it" if len(ranks) == 1 else "nothing is known of them"
    nobody = "waits for nobody" if len(ranks) == 1 else "wait for nobody"
    return f"{nobody}; nothing is known of {count_ranks(unknown)}" if unknown else nobody


def _edge_key(edge: WaitEdge) -> Hashable:
    # Members of one collective that wait for each other are equals although each leaves itself out of its targets.
    targets: Hashable = edge.targets
    if edge.kind in ("collective", "new_group", "rendezvous") and len(edge.targets) > 1:
        targets = frozenset((*edge.targets, edge.waiter)) if edge.mismatch else frozenset(edge.targets)
    return (edge.kind, edge.what, targets, edge.mismatch)


def _fold(edges: Sequence[WaitEdge], ranks: Sequence[int]) -> tuple[FoldedWait, ...]:
    waits = []
    for edge in sorted(edges, key=lambda e: e.since_ns or 0):  # the oldest is what holds the rank up
        among = edge.mismatch and not set(ranks).isdisjoint(edge.targets)
        targets = tuple(sorted({*edge.targets, *ranks})) if among else edge.targets
        waits.append(FoldedWait(edge.what, edge.kind, targets, edge.mismatch, edge.since_ns))
    return tuple(waits)


def _classes(waits: WaitsFor) -> list[tuple[list[int], list[WaitEdge], bool, bool]]:
    """(ranks, edges of one of them, is root, in cycle) per set of equals."""
    edges: dict[int, list[WaitEdge]] = {}
    for edge in waits.edges:
        edges.setdefault(edge.waiter, []).append(edge)
    cycle_of = {rank: number for number, cycle in enumerate(waits.cycles) for rank in cycle}
    roots = set(waits.roots)
    awaited = {target for target_set in {e.targets for e in waits.edges} for target in target_set}
    found: dict[Hashable, list[int]] = {}
    for rank in sorted({*edges, *roots, *awaited, *cycle_of}):
        own = frozenset(_edge_key(e) for e in edges.get(rank, ()))
        found.setdefault((own, rank in roots, cycle_of.get(rank)), []).append(rank)
    return [(ranks, edges.get(ranks[0], []), ranks[0] in roots, ranks[0] in cycle_of) for ranks in found.values()]


def _arrows(nodes: Sequence[WaitNode]) -> tuple[tuple[int, int, int], ...]:
    number_of = {rank: number for number, node in enumerate(nodes) for rank in node.ranks}
    arrows: list[tuple[int, int, int]] = []
    for number, node in enumerate(nodes):
        for which, wait in enumerate(node.waits):
            awaited = {number_of[t] for t in wait.targets if t in number_of}
            others = sorted(awaited - {number} if len(awaited) > 1 else awaited)
            arrows.extend((number, target, which) for target in others)
    return tuple(arrows)


def _layers(nodes: Sequence[WaitNode], arrows: Iterable[tuple[int, int, int]], first: Iterable[int]) -> list[int]:
    """Distance of each node from the root, or from the first culprit where all wait in a cycle."""
    wanted = set(first)
    seeds = [i for i, n in enumerate(nodes) if n.is_root]
    seeds = seeds or [i for i, n in enumerate(nodes) if n.in_cycle and wanted & set(n.ranks)][:1]
    seeds = seeds or [i for i, n in enumerate(nodes) if n.in_cycle][:1] or list(range(min(1, len(nodes))))
    layer = dict.fromkeys(seeds, 0)
    waiters: dict[int, list[int]] = {}
    for waiter, target, _ in arrows:
        waiters.setdefault(target, []).append(waiter)
    queue = list(seeds)
    for number in queue:
        for waiter in waiters.get(number, ()):
            if waiter not in layer:
                layer[waiter] = layer[number] + 1
                queue.append(waiter)
    last = max(layer.values(), default=0) + 1
    return [layer.get(number, last) for number in range(len(nodes))]


def wait_graph(waits: WaitsFor, culprits: Sequence[int] = ()) -> WaitGraph:
    """Folds equals into nodes and places them in layers; roots, cycles and culprits survive the cap on nodes."""
    accused = set(culprits)
    everything = [WaitNode(tuple(r), _fold(e, r), root, cycle) for r, e, root, cycle in _classes(waits)]
    everything.sort(key=lambda n: (not n.is_root, not accused & set(n.ranks), not n.in_cycle, -len(n.ranks), n.ranks))
    nodes, rest = everything[:_MOST_NODES], everything[_MOST_NODES:]
    arrows = _arrows(nodes)
    layers = _layers(nodes, arrows, culprits)
    filled: dict[int, int] = {}
    placed = []
    for node, layer in zip(nodes, layers, strict=True):
        slot = filled[layer] = filled.get(layer, -1) + 1
        placed.append(WaitNode(node.ranks, node.waits, node.is_root, node.in_cycle, layer, slot))
    return WaitGraph(tuple(placed), arrows, len(rest), sum(len(n.ranks) for n in rest))
