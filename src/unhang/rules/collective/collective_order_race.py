"""Rule: the same collectives in another order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from unhang.analyze.callpath import Path, user_path
from unhang.analyze.divergence import Divergence
from unhang.analyze.graph import edges_on
from unhang.analyze.situation import Situation
from unhang.analyze.streams import stack_path
from unhang.model import EvidenceLine, Finding, Fix, Frame, WaitEdge
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.call_left_out import is_seen_elsewhere, left_out
from unhang.rules.collective.order import is_dispatch_race, is_thread_race, out_of_order, receive_first
from unhang.rules.collective.wrong_peer import wrong_peers
from unhang.rules.examples import make_case

_MOST_NAMED = 4
_MOST_COMPANIONS = 256
_PAIRS = {"a": (0, 1), "b": (0, 1)}


class CollectiveOrderRace(Rule):
    """The same collectives are issued in another order: two groups, two threads, a queue of commands, point-to-point.

    What it detects:
        Two ranks that wait in each other's call (a cycle of the waits-for graph), a group that two threads of one rank use, or
        one dispatching line that called different functions on the ranks.

    Why it hangs:
        Order is part of the contract. Each rank waits in a call that its peer will reach only after the call in which it waits
        itself.

    How to confirm:
        Follow the cycle that the finding shows.

    How to fix:
        Fix one order for all ranks: one queue or lock for all that submit work, one thread per group, a group of its own for
        background traffic; for point-to-point `batch_isend_irecv`, or even ranks send first and odd ranks receive first.

    Sources:
        MUST (Hilbrich et al.): cycles and knots of the waits-for graph; NCCL documentation on using several communicators.
    """

    id = "collective-order-race"
    cause = "collective-order-race"
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {0: ["a/all_reduce[4]@main:5 !"], 1: ["b/all_reduce[4]@main:8 !"]},
                world=2,
                groups=_PAIRS,
                stacks={0: "main:5>~comm", 1: "main:8>~comm"},
            ),
            (0, 1),
            None,
        ),
        Quiet(
            make_case({0: ["a/all_reduce[4]@main:5 !"], 1: ["b/all_reduce[4]@main:8"]}, world=2, groups=_PAIRS),
            "a rank that is merely late closes no cycle",
        ),
        Quiet(
            make_case(
                {
                    0: ["all_reduce[8]@main:10 thread=pt_autograd_0", "barrier@main:11 !"],
                    1: ["all_reduce[8]@main:10", "barrier@main:11 !"],
                },
                world=2,
            ),
            "backward issues its calls from autograd's thread",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """A race on one group, or a cycle over several."""
        d = s.divergence
        if d is not None and (is_thread_race(s, d) or (is_dispatch_race(d) and not d.left_loop)):
            yield _race(s, d)
        elif d is None and s.judges_waits:
            for cycle in s.waits.cycles:
                is_explained = _is_of_another_kind(s, cycle) or wrong_peers(s) or left_out(s, cycle)
                if set(cycle) <= set(s.proven) and not is_explained:
                    yield _cycle(s, cycle)


def _is_of_another_kind(s: Situation, cycle: tuple[int, ...]) -> bool:
    """A circle at start-up, or of two sides of one transfer that differ."""
    edges = [e for r in cycle for e in s.waits.edges_of(r)]
    return any(e.kind in ("new_group", "rendezvous") or (e.kind == "p2p" and e.mismatch) for e in edges)


def _race(s: Situation, d: Divergence) -> Finding:
    by_thread = is_thread_race(s, d)
    frame = _race_frame(s, d) if by_thread else d.location
    odd, ref = w.name_ranks(d.odd), w.name_ranks(d.reference)
    how = "from a second thread" if by_thread else f"through the same dispatching line {w.place(frame)}"
    return Finding(
        rule=CollectiveOrderRace.id,
        cause=CollectiveOrderRace.cause,
        title=f"{odd} and {ref} issue the calls of {d.group} in another order, {how}",
        confidence=0.92 if d.has_majority else 0.8,
        culprit_ranks=d.odd,
        victim_ranks=s.others(d.odd),
        because=(
            f"Call #{d.seq} of {d.group} is {w.name_call(d.odd_call)} on {odd} and {w.name_call(d.reference_call)} on {ref}. "
            + (
                "Another thread than that of the group's other calls issued one of them."
                if by_thread
                else "Both ranks run both functions, in the order in which the commands arrived."
            )
            + (f" The calls up to #{d.stuck_seq - 1} paired silently." if d.seq < d.stuck_seq else "")
        ),
        process_group=w.group_of(d.group),
        collective=w.collective_of(d.reference_call, d.seq),
        location=w.location_of(frame),
        evidence=(
            w.path_line(d.odd[0], f"#{d.seq} {w.name_call(d.odd_call)} (thread {d.odd_call.thread})", d.odd_path),
            w.path_line(
                d.reference[0],
                f"#{d.seq} {w.name_call(d.reference_call)} (thread {d.reference_call.thread})",
                d.reference_path,
            ),
            *w.stack_lines(s.case.ranks.get(d.odd[0])),
        ),
        fixes=_fixes(by_thread),
    )


def _race_frame(s: Situation, d: Divergence) -> Frame | None:
    """The line of the call that came from the rarer thread."""
    table = s.case.calls
    group = table.groups.index(d.group)

    def rarity(thread: str, rank: int) -> int:
        return sum(table.threads[int(table["thread"][row])] == thread for row in table.rows(rank=rank, group=group))

    rare = min((d.odd_call, d.reference_call), key=lambda c: rarity(c.thread, c.rank))
    path = user_path(rare.frames)
    return path[-1] if path else d.location


def _fixes(by_thread: bool) -> tuple[Fix, ...]:
    if by_thread:
        patch = "give the background thread its own group (dist.new_group), or issue its call from the main thread"
    else:
        patch = "submit all collective work through one queue under one lock, and wait for a command before the next is submitted"
    return (
        Fix(
            "One order for every rank",
            patch=patch,
            verify="unhang run -- <the same command>, several times",
            undo="revert the edit",
        ),
        Fix(
            "A barrier does not help: it is one more call whose order can differ",
            setting="do not add barriers",
            verify="-",
        ),
    )


def _cycle(s: Situation, cycle: tuple[int, ...]) -> Finding:
    edges = [s.waits.edges_of(r)[0] for r in cycle]
    p2p = all(e.kind == "p2p" for e in edges)
    left = s.departures(cycle)
    is_pattern = _all_do_the_same(edges) and all(is_seen_elsewhere(s, r) for r in cycle)
    by_order = out_of_order(s, edges)
    by_habit = () if by_order else _with_companions(s, cycle, left, _left_their_habit(left, cycle))
    odd = by_order or by_habit
    is_mixed = len({e.kind for e in edges}) > 1
    is_known = all(r in left or (is_seen_elsewhere(s, r) and not is_mixed) for r in cycle)
    line = () if odd or is_pattern else receive_first(s, cycle)
    culprits = odd or (cycle if line or (len(cycle) <= _MOST_NAMED and is_known) else ())
    path = (stack_path(s.case, culprits[0]) or _path_of_front(s, culprits[0])) if culprits else ()
    what = "point-to-point calls" if p2p else "sends and collectives" if is_mixed else "collectives of different groups"
    because = "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in edges[:6]) + "."
    if by_habit:
        call = s.case.calls.call(left[next(r for r in by_habit if r in left)])
        path = user_path(call.frames) or path
        because += f" {w.name_ranks(by_habit)} made {w.name_call(call)} #{call.seq} of {call.group}, which neither its own past nor a peer foretold."
    elif line:
        because += f" All receive first, at {w.place(line[-1])}, and none has sent anything before: their common order is at fault."
    elif not (odd or is_pattern):
        because += " Nothing tells which order is the right one."
    awaited = _awaited(s, culprits, cycle) or edges[0]
    return Finding(
        rule=CollectiveOrderRace.id,
        cause="code-divergence" if by_habit else CollectiveOrderRace.cause,
        title=f"{w.name_ranks(cycle)} wait for each other in {what}"
        + (f"; {w.name_ranks(odd)} left the order of the others" if odd else ""),
        confidence=0.9 if odd or is_pattern else 0.7 if line else 0.45,
        culprit_ranks=culprits,
        victim_ranks=s.others(culprits),
        because=because,
        process_group={"pg_name": awaited.group, "pg_desc": ""},
        collective={"op": awaited.what.split(" ")[0], "seq": awaited.seq},
        location=w.location_of(path[-1] if path else None),
        evidence=_evidence(s, cycle),
        fixes=(_p2p_fix() if p2p else _fixes(False)[0],),
    )


def _evidence(s: Situation, cycle: tuple[int, ...]) -> tuple[EvidenceLine, ...]:
    """The waits and stacks of the circle."""
    return tuple(
        line
        for r in cycle[:4]
        for line in (*map(w.waiting_line, s.waits.edges_of(r)), *w.stack_lines(s.case.ranks.get(r), 2))
    )


def _all_do_the_same(edges: Sequence[WaitEdge]) -> bool:
    """Whether all receive first, or all send first: then the pattern itself is at fault, not one of them."""
    return all(e.kind == "p2p" for e in edges) and len({e.what.split(" ")[0] for e in edges}) == 1


def _awaited(s: Situation, culprits: tuple[int, ...], cycle: tuple[int, ...]) -> WaitEdge | None:
    """The oldest wait of the cycle for a culprit."""
    waits = edges_on(s.waits, culprits) if len(culprits) < len(cycle) else {}
    found = [e for edges in waits.values() for e in edges if e.waiter in cycle]
    return min(found, key=lambda e: e.since_ns or 0, default=None)


def _left_their_habit(left: Mapping[int, int], cycle: tuple[int, ...]) -> tuple[int, ...]:
    """Those of the cycle that made a call which nothing foretold, if that tells them from the others."""
    return tuple(sorted(left)) if 0 < len(left) < len(cycle) else ()


def _with_companions(
    s: Situation, cycle: tuple[int, ...], left: Mapping[int, int], odd: tuple[int, ...]
) -> tuple[int, ...]:
    """Those that left their habit, with those outside of the cycle that left it by the same collective."""
    table = s.case.calls
    places = {(int(table["group"][left[r]]), int(table["seq"][left[r]])) for r in odd if not table["is_p2p"][left[r]]}
    if len(places) != 1:
        return odd
    position = s.index.position(*places.pop())
    if position is None or len(position.ranks) > _MOST_COMPANIONS:
        return odd
    rows = dict(zip(position.ranks.tolist(), position.rows.tolist(), strict=True))
    also = s.departures([*cycle, *rows]) if len(rows) > len(odd) else {}
    return tuple(sorted({*odd, *(r for r, row in also.items() if rows.get(r) == row)}))


def _path_of_front(s: Situation, rank: int) -> Path:
    rows = s.recorded.fronts.get(rank, ())
    return user_path(s.case.calls.call(rows[0]).frames) if rows else ()


def _p2p_fix() -> Fix:
    return Fix(
        "Break the circle of receives",
        patch="use dist.batch_isend_irecv for both directions, or let even ranks send first and odd ranks receive first",
        verify="unhang run -- <the same command>",
        undo="revert the edit",
    )
