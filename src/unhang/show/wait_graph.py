"""The waits-for graph folded to a few nodes, in layers from the root. Pure: the same waits give the same picture."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from unhang.analyze.activity import Activity
from unhang.analyze.hosts import activity_in
from unhang.model import Case, HangObservation, WaitEdge, WaitsFor, grouped, user_frames
from unhang.model.findings import count_ranks, name_ranks
from unhang.show.paper import Paper, duration

_MOST_NODES = 24


@dataclass(frozen=True, slots=True)
class FoldedWait:
    """What every rank of a node waits for."""

    what: str
    targets: tuple[int, ...]
    mismatch: bool


@dataclass(frozen=True, slots=True)
class WaitNode:
    """Ranks in the same situation. `layer` counts waits from the root; `is_apart`: it waits for no root, directly or not."""

    ranks: tuple[int, ...]
    waits: tuple[FoldedWait, ...]
    is_root: bool
    in_cycle: bool
    layer: int = 0
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """Nodes, and how many nodes with how many ranks were left out."""

    nodes: tuple[WaitNode, ...] = ()
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
        waits.append(FoldedWait(edge.what, targets, edge.mismatch))
    return tuple(waits)


def _classes(waits: WaitsFor) -> list[tuple[list[int], Sequence[WaitEdge], bool, bool]]:
    """(ranks, edges of one of them, is root, in cycle) per set of equals."""
    cycle_of = {rank: number for number, cycle in enumerate(waits.cycles) for rank in cycle}
    roots = set(waits.roots)
    awaited = {target for target_set in {e.targets for e in waits.edges} for target in target_set}
    found = grouped(
        ((frozenset(map(_edge_key, waits.edges_of(rank))), rank in roots, cycle_of.get(rank)), rank)
        for rank in sorted({*waits.waiting, *roots, *awaited, *cycle_of})
    )
    return [(ranks, waits.edges_of(ranks[0]), ranks[0] in roots, ranks[0] in cycle_of) for ranks in found.values()]


def _layers(nodes: Sequence[WaitNode], first: Iterable[int]) -> list[int | None]:
    """Distance of each node from the root, or from the first culprit where all wait in a cycle; None where no wait leads there."""
    wanted = set(first)
    seeds = [i for i, n in enumerate(nodes) if n.is_root]
    seeds = seeds or [i for i, n in enumerate(nodes) if n.in_cycle and wanted & set(n.ranks)][:1]
    seeds = seeds or [i for i, n in enumerate(nodes) if n.in_cycle][:1] or list(range(min(1, len(nodes))))
    waiters = grouped((wait.targets, number) for number, node in enumerate(nodes) for wait in node.waits)
    waited_in = grouped((target, targets) for targets in waiters for target in targets)
    layer: dict[int, int] = dict.fromkeys(seeds, 0)
    queue = list(seeds)
    for number in queue:
        for rank in nodes[number].ranks:
            for targets in waited_in.pop(rank, ()):
                for waiter in waiters.pop(targets, ()):
                    if waiter not in layer:
                        layer[waiter] = layer[number] + 1
                        queue.append(waiter)
    return [layer.get(number) for number in range(len(nodes))]


def wait_graph(waits: WaitsFor, culprits: Sequence[int] = ()) -> WaitGraph:
    """Folds equals into nodes and places them in layers. Roots, culprits, cycles and who waits directly survive the cap on nodes."""
    accused = set(culprits)
    everything = [WaitNode(tuple(r), _fold(e, r), root, cycle) for r, e, root, cycle in _classes(waits)]
    everything.sort(key=lambda n: (not n.is_root, not accused & set(n.ranks), not n.in_cycle, -len(n.ranks), n.ranks))
    layers = _layers(everything, culprits)
    last = max((layer for layer in layers if layer is not None), default=0) + 1
    placed = [
        replace(node, layer=last if layer is None else layer, is_apart=layer is None)
        for node, layer in zip(everything, layers, strict=True)
    ]
    placed.sort(key=lambda n: (not n.is_root, not accused & set(n.ranks), not n.in_cycle, n.layer != 1))
    rest = placed[_MOST_NODES:]
    return WaitGraph(tuple(placed[:_MOST_NODES]), len(rest), sum(len(n.ranks) for n in rest))


# What is shown of a suspicion while the job still runs: a few lines.

_MOST_ROOTS, _MOST_FRAMES = 3, 4
_BUSY_SHARE = 0.05


def render_stall(case: Case, waits: WaitsFor, hang: HangObservation, what_next: str, color: bool = False) -> str:
    """A few lines. `what_next`: what becomes of the job, as the user has asked for it."""
    paper = Paper(color, 100)
    lasted = f" {duration(hang.detected_after_s)}" if hang.detected_after_s is not None else ""
    paper.line((f"STALLED{lasted}:", "warn"), " ", (_stalled(case, waits, hang), "strong"))
    for node in wait_graph(waits).nodes:
        for wait in node.waits[:1]:
            paper.line(f"{name_ranks(node.ranks)} in {wait.what}", indent=2)
    for rank in waits.roots[:_MOST_ROOTS]:
        if stack := _one_line_stack(case, rank):
            paper.line(f"rank {rank} in {stack}", indent=2)
    paper.prose(f"Suspected, not proven. {what_next}", style="dim")
    return str(paper)


def _stalled(case: Case, waits: WaitsFor, hang: HangObservation) -> str:
    waiting = waits.waiting
    if not waiting:
        return hang.reason or f"{name_ranks(hang.waiting_ranks)} make no progress"
    verb = "waits" if len(waiting) == 1 else "wait"
    if not waits.roots:
        return f"{name_ranks(waiting)} {verb}: {hang.reason}"
    doing = {_doing(case, rank) for rank in waits.roots}
    what = f" ({doing.pop()})" if len(doing) == 1 else ""
    return f"{name_ranks(waiting)} {verb} for {name_ranks(waits.roots)}{what}"


def _doing(case: Case, rank: int) -> str:
    evidence = case.ranks.get(rank)
    if evidence is None:
        return "not seen from here" if rank in case.out_of_sight else "it has not registered"
    activity = activity_in(case, rank)
    share = evidence.state.cpu_share if evidence.state else None
    return f"{_words(activity, share or 0.0)} {_place(activity)}".strip()


def _words(activity: Activity, cpu_share: float) -> str:
    match activity.kind:
        case "data":
            return "waits for its data"
        case "lock" | "outside":
            return f"waits for {activity.awaits}"
        case "frozen":
            return f"it is {activity.detail}"
        case "shutdown":
            return "at the end of its program"
        case "dead":
            return "it has ended"
        case "unknown":
            return activity.detail
        case _:
            return "busy" if cpu_share >= _BUSY_SHARE else ""


def _place(activity: Activity) -> str:
    frame = activity.frame
    return f"in {frame.function}, {frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame else ""


def _one_line_stack(case: Case, rank: int) -> str:
    evidence = case.ranks.get(rank)
    stack = evidence.main_stack if evidence else None
    return " < ".join(map(str, user_frames(stack.frames)[:_MOST_FRAMES])) if stack else ""
