"""Who waits for whom, across all groups, point-to-point pairs, group creation, stores and rendezvous; and questions to that graph.

Source: the AND-OR waits-for graph of MUST (Hilbrich et al., 2009-2013), reduced to AND nodes: every wait here needs all of
its targets.

A thousand ranks that wait for the same thousand share one tuple of targets, which is one node between them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from unhang.analyze.activity import is_blocked
from unhang.analyze.calls.align import StuckCollective, stuck_behind
from unhang.analyze.calls.positions import CallIndex, bare_op
from unhang.analyze.failures import is_timeout
from unhang.analyze.hosts import ON_DEVICE, may_still_call, runs_without_gil, waits_there
from unhang.analyze.waits.recorded_waits import RecordedWaits
from unhang.analyze.waits.sends import p2p_edges
from unhang.analyze.waits.standing import seen_edges
from unhang.model import (
    CallState,
    Case,
    PendingCall,
    RankEvidence,
    ThreadStack,
    WaitEdge,
    WaitsFor,
    grouped,
    user_frames,
)
from unhang.read.logs import kinds_in


def _shared(edges: Iterable[WaitEdge]) -> dict[int, tuple[int, ...]]:
    """Edges' targets by identity."""
    return {id(e.targets): e.targets for e in edges if e.targets}


def cycles(edges: Sequence[WaitEdge]) -> tuple[tuple[int, ...], ...]:
    """Strongly connected sets of two or more ranks (iterative Tarjan)."""
    virtual = {identity: -1 - i for i, identity in enumerate(_shared(edges))}  # ranks are not negative
    successors = grouped((edge.waiter, virtual[id(edge.targets)]) for edge in edges if edge.targets)
    successors |= {virtual[identity]: list(targets) for identity, targets in _shared(edges).items()}
    found = (tuple(sorted(n for n in component if n >= 0)) for component in _components(successors))
    return tuple(sorted(ranks for ranks in found if len(ranks) > 1))


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
    sets = grouped((t, identity) for identity, targets in _shared(graph.edges).items() for t in targets)
    return sets, grouped((id(edge.targets), edge) for edge in graph.edges if edge.targets)


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


def owed_by_waiting(case: Case, graph: WaitsFor) -> tuple[WaitsFor, tuple[int, ...]]:
    """The graph without waits for ranks of which another thread, one at work, makes these calls; and the ranks that have a wait for such alone."""
    threaded = {r for r, e in case.ranks.items() if sum(bool(user_frames(s.frames)) for s in e.own_stacks) > 1}
    edges, given = [], []
    for edge in graph.edges if threaded else ():
        working = {t for t in edge.targets if t in threaded and not edge.mismatch and may_still_call(case, t, edge)}
        left = tuple(t for t in edge.targets if t not in working) if working else edge.targets
        edges.append(replace(edge, targets=left) if working else edge)
        given += [edge.waiter] if working and not left else []
    return (replace(graph, edges=tuple(edges)) if edges else graph), tuple(given)


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


_NUMBER = re.compile(r"\d+")


def runs_ahead(case: Case, graph: WaitsFor) -> tuple[int, ...]:
    """Ranks whose devices wait, and whose hosts do not: they may still issue what ends the wait of another one."""
    found = {e.waiter for e in graph.edges if e.kind == "collective"}
    return tuple(r for r in sorted(found) if not (is_blocked(case.ranks.get(r)) or _host_waits(case, r)))


def _host_waits(case: Case, rank: int) -> bool:
    """Whether the host was seen to wait for its device, in a job that has stood still: then it issues nothing."""
    evidence = case.ranks.get(rank)
    has_stood = case.hang is not None and not case.hang.withdrawn
    return evidence is not None and has_stood and runs_without_gil(evidence.main_stack) and waits_there(case, rank)


def _gave_up_waiting(evidence: RankEvidence | None) -> bool:
    """Whether the rank failed as a wait ran out: then it waited in the call that it has open, until it raised."""
    return evidence is not None and evidence.error is not None and is_timeout(evidence.error)


def _collective_edges(case: Case, stuck: Iterable[StuckCollective], plain: Collection[int]) -> Iterable[WaitEdge]:
    for s in stuck:
        missing = tuple(sorted(s.missing))
        for rank in s.waiting:
            evidence = case.ranks.get(rank)
            has_waited = s.group.backend == ON_DEVICE or is_blocked(evidence) or _gave_up_waiting(evidence)
            if rank in plain or not has_waited:
                continue
            other = tuple(sorted(r for c in s.classes if rank not in c for r in c))
            if targets := missing or other:
                call = s.calls[rank]
                what = f"{bare_op(call.op)} #{s.seq} of {s.group}"
                differs = bool(other and not missing)
                yield WaitEdge(rank, targets, "collective", what, s.group.name, s.seq, call.created_ns, differs)


def under_way(evidence: RankEvidence, kind: str) -> PendingCall | None:
    """The call of a kind that the flight recorder does not show, in which a rank is."""
    return next((c for c in evidence.pending if c.kind == kind and c.ended_ns is None), None)


def _start_up_edges(case: Case) -> Iterable[WaitEdge]:
    for rank, evidence in case.ranks.items():
        if not evidence.pending:
            continue
        call = under_way(evidence, "init_process_group")
        if call is not None:
            absent = tuple(r for r in case.world if r != rank and not _has_come(case.ranks.get(r), call))
            if absent:
                yield WaitEdge(rank, absent, "rendezvous", "init_process_group", "", None, call.started_ns)
            continue
        call = under_way(evidence, "new_group")
        if call is not None:
            yield from _new_group_edges(case, rank, call)
            continue
        call = under_way(evidence, "store_wait")
        if call is not None:
            setter = setter_of(case, call)
            is_owed = setter is not None and setter[0] != rank and not _is_at_its_last(case, *setter)
            targets = (setter[0],) if setter and is_owed else ()
            yield WaitEdge(rank, targets, "store", f"key {call.detail!r} of the store", "", None, call.started_ns)


def setter_of(case: Case, wait: PendingCall) -> tuple[int, PendingCall] | None:
    """The one rank that has set keys like the awaited one more than once, all but for their numbers, with the last of them.

    Of several keys, one of each rank, the one rank whose last is none of them.
    """
    keys = wait.detail.split(",")
    sorts = {_NUMBER.sub("#", key) for key in keys}
    found = [
        (rank, call)
        for rank, evidence in case.ranks.items()
        for call in evidence.pending
        if call.kind == "store_set" and _NUMBER.sub("#", call.detail) in sorts
    ]
    late = [(rank, call) for rank, call in found if call.index > 1 and call.detail not in keys]
    return late[0] if len(sorts) == 1 and len(found) == len(keys) and len(late) == 1 else None


def _is_at_its_last(case: Case, rank: int, last: PendingCall) -> bool:
    """Whether the rank waits in a call that may belong to the last key that it has set: then the next one is not due yet.

    Calls of that group are counted: one since that key, or no more than there were for each key before.
    """
    calls = case.calls
    rows = calls.rows(rank=rank, is_p2p=0)
    waiting = rows[calls["state"][rows] < CallState.COMPLETED]
    if not len(waiting):
        return False
    group = calls["group"][waiting[0]]
    created = calls["created_ns"][rows[calls["group"][rows] == group]]
    since = int((created >= last.started_ns).sum())
    return 0 < since <= max(1.0, (len(created) - since) / last.index)


def _monitored_edges(case: Case) -> Iterable[WaitEdge]:
    """Waits in a monitored barrier, also in one that has given up, for the members of its group that have not come to it."""
    groups = {g.name: g for g in case.groups}
    for rank, evidence in case.ranks.items():
        call = next((c for c in reversed(evidence.pending) if c.kind == "monitored_barrier"), None)
        if call is None or (call.ended_ns is not None and not _gave_up(evidence)):
            continue
        group = groups.get(call.group)
        members = group.ranks if group else case.world
        absent = tuple(r for r in members if r != rank and _made(case.ranks.get(r), call) < call.index)
        if absent:
            what = f"monitored_barrier #{call.index} of {group or 'its group'}"
            yield WaitEdge(rank, absent, "barrier", what, call.group, None, call.started_ns)


def _gave_up(evidence: RankEvidence) -> bool:
    """Whether the rank failed in a monitored barrier."""
    return evidence.error is not None and "peer.missed_barrier" in kinds_in(evidence.error.text)


def _made(evidence: RankEvidence | None, like: PendingCall) -> int:
    """How many calls of that kind, in that group, a rank has begun."""
    calls = evidence.pending if evidence else ()
    return max((c.index for c in calls if (c.kind, c.group) == (like.kind, like.group)), default=0)


def _new_group_edges(case: Case, rank: int, call: PendingCall) -> Iterable[WaitEdge]:
    """A wait for those that have created fewer groups, or for ever for those that created another one in its place."""
    what = f"new_group #{call.index} (ranks {call.detail})"
    if call.tag:
        members = tuple(r for r in case.world if str(r) in call.detail.split(",") and r != rank)
        absent = tuple(r for r in members if not _is_making(case.ranks.get(r), call.detail))
        if absent and "." not in call.detail:
            yield WaitEdge(rank, absent, "new_group", what, "", call.index, call.started_ns)
        return
    mine, count = _created(case.ranks[rank]), _new_groups(case.ranks[rank])
    behind = tuple(r for r in case.world if r != rank and _new_groups(case.ranks.get(r)) < count)
    other = tuple(r for r, e in case.ranks.items() if r not in (rank, *behind) and _created(e)[:count] != mine)
    if behind or other:
        yield WaitEdge(rank, behind or other, "new_group", what, "", call.index, call.started_ns, mismatch=not behind)


def _is_making(evidence: RankEvidence | None, ranks: str) -> bool:
    """Whether a rank is in the call that makes a group of these members."""
    call = under_way(evidence, "new_group") if evidence is not None else None
    return call is not None and call.detail == ranks


def _created(evidence: RankEvidence) -> list[str]:
    return [c.detail for c in evidence.pending if c.kind == "new_group" and not c.tag]


def _has_come(evidence: RankEvidence | None, call: PendingCall) -> bool:
    """Whether a rank is in init_process_group, or has been: of a group that is made anew, as often as the one that waits in `call`."""
    if evidence is None or under_way(evidence, call.kind) is not None:
        return evidence is not None
    made = max((c.index for c in evidence.pending if c.kind == call.kind), default=0)
    return bool(evidence.initialized) and not 0 < made == call.index - 1


def _new_groups(evidence: RankEvidence | None) -> int:
    """How many groups a rank has begun to make that all ranks make."""
    made = [c for c in (evidence.pending if evidence else ()) if c.kind == "new_group"]
    return max((c.index for c in made), default=0) - sum(c.tag for c in made)


def _has_recorded_waits_only(case: Case, rank: int) -> bool:
    """Whether only the order of the calls tells where a rank waits: nothing else is known of it, or its host waits for its device."""
    evidence = case.ranks.get(rank)
    return evidence is None or not (evidence.stacks or evidence.pending) or _host_waits(case, rank)


def waits_for(case: Case, stuck: Sequence[StuckCollective], recorded: RecordedWaits, index: CallIndex) -> WaitsFor:
    """The graph of one case; `stuck` as `stuck_collectives` gives it.

    A rank that has a stack, or of which more than its recorded calls is known, waits in every open call; of the others only
    the order of their calls tells.
    """
    plain = {r for r in recorded.fronts if _has_recorded_waits_only(case, r)}
    found = (
        *_collective_edges(case, stuck, plain),
        *_collective_edges(case, stuck_behind(index, [x for x in stuck if x.group.backend != ON_DEVICE]), plain),
        *recorded.edges(plain, stuck),
        *p2p_edges(case),
        *_start_up_edges(case),
        *_monitored_edges(case),
        *seen_edges(case),
    )
    edges = tuple(sorted(found, key=lambda e: (e.waiter, e.what)))
    waiting = {e.waiter for e in edges if e.targets} | (set(recorded.fronts) - recorded.stalled) & plain
    targets = {t for e in edges for t in e.targets}
    return WaitsFor(edges, tuple(sorted(targets - waiting)), cycles(edges))


def main_waits_in_store(case: Case, rank: int) -> bool:
    """Whether the main thread, not another one, waits for a key."""
    if not case.ranks[rank].pending:
        return False
    stack = case.ranks[rank].main_stack
    wait = under_way(case.ranks[rank], "store_wait")
    starts = any(under_way(case.ranks[rank], kind) for kind in ("new_group", "init_process_group"))
    return wait is not None and not starts and (stack is None or _is_in(stack, wait))


def _is_in(stack: ThreadStack, wait: PendingCall) -> bool:
    """Whether a thread stands where a wait for a key began."""
    is_known = any(f.function == "store_wait" for f in stack.frames[:3])
    return is_known or (bool(wait.frames) and user_frames(stack.frames)[: len(wait.frames)] == wait.frames)
