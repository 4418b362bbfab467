"""Rules on calls in another order: a race of threads, a circle over several groups, two calls that wait crosswise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from unhang.analyze.calls.divergence import Divergence
from unhang.analyze.calls.loop_heads import SortedApart, loop_sorted_apart
from unhang.analyze.calls.streams import stack_path
from unhang.analyze.lines.first_errors import errors_of, is_log_only
from unhang.analyze.lines.going_on import not_come
from unhang.analyze.lines.logged_calls import lines_of
from unhang.analyze.lines.pasted import doings_of
from unhang.analyze.program.callpath import Path, innermost, user_path
from unhang.analyze.program.metrics import is_metric
from unhang.analyze.program.peers import SENDS
from unhang.analyze.program.sides import started_ns
from unhang.analyze.program.source import Condition, around, frame_at, surroundings
from unhang.analyze.program.trees import line_text
from unhang.analyze.program.ways_out import way_past
from unhang.analyze.situation import Situation
from unhang.analyze.waits import order
from unhang.analyze.waits.locks import held_over_calls
from unhang.analyze.waits.transfers import (
    LeftOutTransfer,
    left_out_transfer,
    left_transfers,
    partners_apart,
    tags_apart,
    with_new_transfer,
    wrong_peers,
)
from unhang.analyze.waits.waits_for import edges_on
from unhang.model import EvidenceLine, Fix, Frame, WaitEdge, user_frames
from unhang.rules import wording as w
from unhang.rules.advice import OF_THE_PROGRAM, decided_together, deciding, fixes_of, gate_of
from unhang.rules.base import Found, rule
from unhang.rules.framework_advice import of_kept_result
from unhang.rules.job.pairs import made_before
from unhang.rules.log_lines import quote

_MOST_NAMED = 4
_MOST_COMPANIONS = 256


@rule("collective-order-race")
def collective_order_race(s: Situation) -> Iterator[Found]:
    """A race on one group, or a cycle over several."""
    d = s.divergence
    if d is not None and (order.is_thread_race(s, d) or (order.is_dispatch_race(d) and not d.left_loop)):
        yield _race(s, d)
    elif is_log_only(s):
        yield from _two_threads(s)
    elif d is None and s.judges_waits:
        is_of_partners = bool(s.waits.cycles) and bool(partners_apart(s) or tags_apart(s) or wrong_peers(s))
        gone = left_transfers(s) if s.waits.cycles else None
        for cycle in s.waits.cycles:
            skipped = left_out_transfer(s, cycle)
            has_left = gone is not None and (skipped is None or gone.other is None)
            is_explained = _is_of_another_kind(s, cycle) or is_of_partners or has_left or order.left_out(s, cycle)
            is_of_stacks = s.standing is not None and any(
                e.kind == "collective" for r in cycle for e in s.waits.edges_of(r)
            )
            if set(cycle) <= set(s.proven) and not is_explained and not is_of_stacks:
                yield (_transfer_left_out(s, cycle, skipped) if skipped else made_before(s, cycle) or _cycle(s, cycle))


def _two_threads(s: Situation) -> Iterator[Found]:
    """Stacks in a log in which two processes at least are in two collectives at once, by two of their threads. The autograd engine's belong to the backward."""
    apart = [d for d in doings_of(s) if d.kind == "collective" and d.what != "backward" and d.beside is not None]
    if len({d.label for d in apart}) < 2:
        return
    first = apart[0]
    words = {"what": first.what, "at": w.at(first.caller), "beside": w.place(first.beside)}
    yield Found(0.8, (), tuple(map(w.stack_of, apart[:3])), words, "two threads", ("threads",), location=first.caller)


def _is_of_another_kind(s: Situation, cycle: tuple[int, ...]) -> bool:
    """A circle at start-up, or of two sides of one transfer that differ."""
    edges = [e for r in cycle for e in s.waits.edges_of(r)]
    return any(e.kind in ("new_group", "rendezvous") or (e.kind == "p2p" and e.mismatch) for e in edges)


def _race(s: Situation, d: Divergence) -> Found:
    by_thread = order.is_thread_race(s, d)
    frame = _race_frame(s, d) if by_thread else d.location
    mine, theirs = w.name_call(d.odd_call), w.name_call(d.reference_call)
    words = {
        "odd": w.name_ranks(d.odd),
        "others": w.name_ranks(d.reference),
        "group": d.group,
        "line": w.place(frame),
        "call": f"Call #{d.seq} of {d.group}",
        "mine": mine,
        "theirs": theirs,
        "paired": f" The calls up to #{d.stuck_seq - 1} paired silently." if d.seq < d.stuck_seq else "",
    }
    evidence = (
        w.path_line(d.odd[0], f"#{d.seq} {mine} (thread {d.odd_call.thread})", d.odd_path),
        w.path_line(d.reference[0], f"#{d.seq} {theirs} (thread {d.reference_call.thread})", d.reference_path),
        *w.stack_lines(s.case.ranks.get(d.odd[0])),
    )
    return Found(
        0.92 if d.has_majority else 0.8,
        () if by_thread and (not d.is_decided or _went_well_before(s, d)) else d.odd if d.has_majority else d.culprits,
        evidence,
        words,
        "threads" if by_thread else "queue",
        ("threads" if by_thread else "queue", "no barrier"),
        s.others(d.odd),
        **w.at_fork(d, frame),
    )


def _went_well_before(s: Situation, d: Divergence) -> bool:
    """Whether both sides use the group from two threads: then who comes first is chance, and nobody is odd.

    They have done so before this call, or one of the others has a thread in the loop of the function from which it came.
    """
    begins = {(p[0].file, p[0].function) for p in (d.odd_path, d.reference_path) if p}
    beside = [t for r in d.reference if r in s.case.ranks for t in s.case.ranks[r].stacks if not t.is_main]
    lowest = [f for t in beside for f in user_frames(t.frames)[-1:] if (f.file, f.function) in begins]
    if len(begins) == 2 and any(surroundings(f.file, f.line).loops for f in lowest):
        return True
    table, group = s.case.calls, s.case.calls.groups.index(d.group)
    for rank in (d.odd[0], d.reference[0]):
        rows = table.rows(rank=rank, group=group)
        if len({int(table["thread"][row]) for row in rows if table["seq"][row] < d.seq}) < 2:
            return False
    return True


def _race_frame(s: Situation, d: Divergence) -> Frame | None:
    """The line of the call that came from the rarer thread."""
    table = s.case.calls
    group = table.groups.index(d.group)

    def rarity(thread: str, rank: int) -> int:
        return sum(table.threads[int(table["thread"][row])] == thread for row in table.rows(rank=rank, group=group))

    rare = min((d.odd_call, d.reference_call), key=lambda c: rarity(c.thread, c.rank))
    path = user_path(rare.frames)
    return path[-1] if path else d.location


def _cycle(s: Situation, cycle: tuple[int, ...]) -> Found:
    edges = [s.waits.edges_of(r)[0] for r in cycle]
    p2p, is_mixed = all(e.kind == "p2p" for e in edges), len({e.kind for e in edges}) > 1
    left = s.departures(cycle)
    is_one_kind = p2p and len({e.what.split(" ")[0] for e in edges}) == 1  # all receive first, or all send first
    is_pattern = is_one_kind and all(order.is_seen_elsewhere(s, r) for r in cycle)
    is_one_line = is_pattern and len({stack_path(s.case, r) for r in cycle}) == 1  # then nobody went another way
    by_order = order.out_of_order(s, edges)
    unforetold = tuple(sorted(left)) if 0 < len(left) < len(cycle) else ()
    by_habit = () if by_order or is_one_line else _with_companions(s, cycle, left, unforetold)
    by_past = () if by_order or by_habit or not p2p or is_one_line else with_new_transfer(s, cycle)
    odd = by_order or by_habit or by_past
    is_known = all(r in left or (order.is_seen_elsewhere(s, r) and not is_mixed) for r in cycle)
    line = () if odd or is_pattern else order.receive_first(s, cycle)
    locked = None if odd or p2p else held_over_calls(s.case, cycle)  # who takes the lock first is chance
    culprits = odd or (cycle if line or (len(cycle) <= _MOST_NAMED and is_known and not locked) else ())
    first = culprits[:1] or (cycle[:1] if locked else ())
    path = (stack_path(s.case, first[0]) or _path_of_front(s, first[0])) if first else ()
    more = ""
    if by_habit:
        call = s.case.calls.call(left[next(r for r in by_habit if r in left)])
        path = user_path(call.frames) or path
        more = f" {w.name_ranks(by_habit)} made {w.name_call(call)} #{call.seq} of {call.group}, which neither its own past nor a peer foretold."
    elif by_past:
        more = f" {w.name_ranks(by_past)} {w.verb(by_past, 'has', 'have')} not made such a transfer before; the others have."
    elif line:
        more = f" All receive first, at {w.place(line[-1])}, and none has sent anything before: their common order is at fault."
    elif locked:
        more = f" Each holds `{locked[0].what}` meanwhile, for which its other thread waits: which thread took it first is chance."
    elif not (odd or is_pattern):
        more = " Nothing tells which order is the right one."
    awaited = _awaited(s, culprits, cycle) or edges[0]
    by_key = loop_sorted_apart(path or stack_path(s.case, cycle[0]) or ()) if not locked else None
    if (alone := order.made_alone(s, cycle)) is not None:
        return _made_by_its_rank(s, cycle, alone)
    decides = None if p2p or locked or by_key else _one_sided_test(s, cycle, odd, path)
    fix = decided_together(*decides) if decides else _fix_of(s, cycle, odd, by_key, p2p, bool(locked))
    words = {
        "ranks": w.name_ranks(cycle),
        "calls": _kinds(edges),
        "odd": f"; {w.name_ranks(odd)} left the order of the others" if odd else "",
        "waits": "; ".join(f"rank {e.waiter} waits for {w.name_ranks(e.targets)} in {e.what}" for e in edges[:6]),
        "more": more,
        "lead": w.lead(innermost(path)),
        "lines": w.listed(sorted({w.spot(f) for x in locked or () for f in (x.holds, x.waits)}) or [""]),
        "lock": locked[0].what if locked else "",
        **(_of_key(by_key) if by_key else {}),
    }
    return Found(
        0.9 if odd or is_pattern else 0.85 if locked else 0.7 if line else 0.45,
        culprits,
        _cycle_lines(s, cycle),
        words,
        "cycle",
        (fix,),
        victims=s.others(culprits),
        **w.at_wait(awaited, innermost(path)),
        cause="code-divergence" if by_habit or by_past or _is_first_of_its_group(s, by_order, edges) else "",
        condition=gate_of(decides[1] if decides else None),
    )


def _transfer_left_out(s: Situation, cycle: tuple[int, ...], found: LeftOutTransfer) -> Found:
    """A member of the circle has skipped its part of it, which it has made in each round before."""
    line, instead = (w.own_line(c.frames) for c in (found.usual, found.instead))
    open_to = [c for c in around(line, started_ns(s.case)).conditions if c.suspicion] if line is not None else []
    gate = deciding([c for c in open_to if not c.depends_on_rank] or open_to)  # the rank has made it before
    passed = way_past(line, gate)
    within = frame_at(gate.path, gate.line) if gate and not passed and not gate.depends_on_rank else None
    way = passed or within or line
    kind, peer = found.usual.kind, found.usual.peer
    words = {
        "who": f"rank {found.rank}",
        "call": f"{kind} {'to' if kind in SENDS else 'from'} rank {peer}",
        "line": w.place(line),
        "instead": w.place(instead),
        "led": _led(passed, within, gate),
        "test": gate.text if gate else "",
        "peer": f"rank {peer}",
        "way": w.spot(way) if way is not None else "the line",
    }
    evidence = (*_cycle_lines(s, cycle), *w.code_line(line, f"rank {found.rank} source"))
    culprits = (found.rank,)
    return Found(
        0.9,
        culprits,
        evidence,
        words,
        "transfer left out",
        ("make it anyhow" if within else "whole round",),
        victims=s.others(culprits),
        **w.at_wait(_awaited(s, culprits, cycle) or s.waits.edges_of(cycle[0])[0], way),
        cause="code-divergence",
        condition=gate_of(gate),
    )


def _led(passed: Frame | None, within: Frame | None, gate: Condition | None) -> str:
    if passed is not None:
        return f": `{line_text(passed.file, passed.line).rstrip(':')}` ({w.spot(passed)}) leads past it"
    return f": it runs only if `{gate.text}` ({w.spot(within)})" if gate and within else ""


def _kinds(edges: Sequence[WaitEdge]) -> str:
    of_pairs = [e.kind == "p2p" for e in edges]
    if any(of_pairs):
        return "point-to-point calls" if all(of_pairs) else "sends and collectives"
    return "collectives of different groups"


def _one_sided_test(
    s: Situation, cycle: Sequence[int], odd: Sequence[int], path: Path
) -> tuple[Frame, Condition] | None:
    """Where the odd ranks left the others' way, and the test that led them there; nothing where the others stand under a test of their own, too."""
    others = [p for r in cycle if r not in odd and (p := stack_path(s.case, r))]
    if not odd or not others:
        return None
    depth = next((i for i, mine in enumerate(path) if any(len(p) <= i or p[i] != mine for p in others)), len(path))
    if depth == len(path) or any(len(p) <= depth or p[depth].function != path[depth].function for p in others):
        return None
    mine, *theirs = (around(p[depth]).conditions for p in (path, *others))
    shared = {c for conditions in theirs for c in conditions}
    if not shared.issubset(mine):
        return None
    test = deciding(c for c in mine if c not in shared and c.suspicion > 0)
    return None if test is None else (path[depth], test)


def _of_metric(s: Situation, cycle: Sequence[int], odd: Sequence[int]) -> Fix | None:
    """For a metric that the others bring together, and the odd ranks did not."""
    rows = [row for r in cycle if r not in odd for row in s.recorded.fronts.get(r, ())] if odd else []
    calls = [call for row in rows if is_metric(call := s.case.calls.call(row)) and user_frames(call.frames or ())]
    return of_kept_result(user_frames(calls[0].frames or ())[0]) if calls else None


def _fix_of(
    s: Situation, cycle: tuple[int, ...], odd: Sequence[int], by_key: SortedApart | None, p2p: bool, is_locked: bool
) -> str | Fix:
    """The first fix of a circle, or its name."""
    if by_key or p2p or is_locked:
        return "same key" if by_key else "receives" if p2p else "no lock"
    return _of_metric(s, cycle, odd) or ("queue" if _from_threads(s, cycle) else "order")


def _of_key(by_key: SortedApart) -> Mapping[str, object]:
    """The words of the fix for a loop that goes by figures of the rank's own."""
    name = w.base_name(by_key.head.file)
    return {"sorted_at": f"{name}:{by_key.at}", "key": by_key.key, "what": by_key.what, "head": w.spot(by_key.head)}


def _is_first_of_its_group(s: Situation, odd: Sequence[int], edges: Sequence[WaitEdge]) -> bool:
    """Whether one rank is odd, by the first call that anybody made in its group, while the others went round without it: no matter of order."""
    table = s.case.calls
    if any((e.seq or 0) < order.ROUNDS for e in edges if e.waiter not in odd):
        return False
    fronts = [row for r in odd for row in s.recorded.fronts.get(r, ())]
    return len(odd) == 1 and len(fronts) == 1 and len(table.rows(group=int(table["group"][fronts[0]]))) == 1


def _from_threads(s: Situation, cycle: tuple[int, ...]) -> bool:
    """Whether a rank makes its calls from several threads: then nothing fixes their order; else the program's own way does."""
    table = s.case.calls
    return any(len(set(table["thread"][table.rank_rows(r)].tolist())) > 1 for r in cycle)


def _made_by_its_rank(s: Situation, cycle: tuple[int, ...], alone: order.MadeAlone) -> Found:
    culprits, call = alone.ranks, alone.call
    awaited = _awaited(s, culprits, cycle)
    words = {
        "who": w.name_ranks(culprits),
        "call": f"{w.name_call(call)} #{call.seq} of {call.group}",
        "line": w.place(alone.line if not alone.gate.is_user else alone.gate),
        "gate": w.place(alone.gate),
        "wait": w.verb(culprits, "waits", "wait"),
        "test": alone.condition.text,
        "others": w.name_ranks(s.others(culprits)),
        "what": awaited.what if awaited else "another call",
    }
    source = w.code_line(alone.gate, f"{w.name_ranks(culprits)} source")
    is_in_library = not alone.gate.is_user
    say = "alone" if alone.is_first else "led there by a library" if is_in_library else "led there"
    fixes: Sequence[str | Fix] = fixes_of(alone.line, alone.condition, w.name_ranks(culprits))
    return Found(
        0.9, culprits, (*_cycle_lines(s, culprits), *source), words, say,
        ("out of the hook",) if is_in_library else fixes, s.others(culprits), cause="code-divergence",
        condition=gate_of(alone.condition), **w.at_call(call, alone.line),
    )  # fmt: skip


def _cycle_lines(s: Situation, cycle: tuple[int, ...]) -> Iterator[EvidenceLine]:
    """The waits and stacks of the circle."""
    for rank in cycle[:4]:
        yield from map(w.waiting_line, s.waits.edges_of(rank))
        yield from w.stack_lines(s.case.ranks.get(rank), 2)


def _awaited(s: Situation, culprits: tuple[int, ...], cycle: tuple[int, ...]) -> WaitEdge | None:
    """The oldest wait of the cycle for a culprit."""
    waits = edges_on(s.waits, culprits) if len(culprits) < len(cycle) else {}
    found = [e for edges in waits.values() for e in edges if e.waiter in cycle]
    return min(found, key=lambda e: e.since_ns or 0, default=None)


def _with_companions(
    s: Situation, cycle: tuple[int, ...], left: Mapping[int, int], odd: tuple[int, ...]
) -> tuple[int, ...]:
    """Those that left their habit, with those outside of the cycle that left it by the same collective."""
    table = s.case.calls
    places = {(int(table["group"][left[r]]), int(table["seq"][left[r]])) for r in odd if not table["is_p2p"][left[r]]}
    position = s.index.position(*places.pop()) if len(places) == 1 else None
    if position is None or len(position.ranks) > _MOST_COMPANIONS:
        return odd
    rows = dict(zip(position.ranks.tolist(), position.rows.tolist(), strict=True))
    also = s.departures([*cycle, *rows]) if len(rows) > len(odd) else {}
    return tuple(sorted({*odd, *(r for r, row in also.items() if rows.get(r) == row)}))


def _path_of_front(s: Situation, rank: int) -> Path:
    rows = s.recorded.fronts.get(rank, ())
    return user_path(s.case.calls.call(rows[0]).frames) if rows else ()


@rule("waits-crosswise")
def waits_crosswise(s: Situation) -> Found | None:
    """Ranks whose watchdogs gave up one call, and all others, who had not come to it, in another call that broke off for it: each side waits for the other."""
    waits, others = s.watchdogs.timed_out, {}
    for error in errors_of(s):
        call = next((f.function for f in error.frames if f.file.endswith("distributed_c10d.py")), "")
        if error.rank is not None and error.kind == "echo" and call and error.rank not in s.watchdogs.ranks:
            others[error.rank] = (error, call)
    by, behind, _ = s.watchdogs.behind
    by, late = (by, {c.rank for c in behind}) if by else not_come(s)
    everybody = {*s.watchdogs.ranks, *others, *late}
    is_all = len(everybody) > 2 and everybody == set(range(s.case.job.world_size or max(everybody) + 1))
    places = {(call, w.own_line(e.frames)) for e, call in others.values()}
    if not (is_all and waits and by and late & set(others) and len(places) == 1):
        return None
    ranks, ((call, place), *_) = tuple(sorted({*others, *late})), places
    where = f" ({place.file.rsplit('/', 1)[-1]}:{place.line})" if place else ""
    raised = [
        EvidenceLine(f"rank {r} exception", f"in {call}: {e.text[:160]}", e.source.line) for r, (e, _) in others.items()
    ]
    words = {"few": w.name_ranks(ranks), "were": w.verb(ranks, "was", "were"), "call": f"{call}{where}", "by": by}
    words |= {"others": w.name_ranks(s.watchdogs.ranks), "awaited": waits[0]}
    return Found(
        0.75,
        ranks if 2 * len(ranks) < len(everybody) else (),
        (*quote(lines_of(waits), 3), *raised[:3]),
        words,
        fixes=OF_THE_PROGRAM,
        victims=s.watchdogs.ranks,
        location=place,
        collective={"op": waits[0].op, "seq": waits[0].seq},
    )
