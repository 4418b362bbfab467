"""Rules on a call that ranks never came to, or that all came to and that does not complete: what the calls alone tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from unhang.analyze.calls.align import StuckCollective, passed_mismatches
from unhang.analyze.calls.positions import bare_op, numels, ranks_with_dump
from unhang.analyze.hosts import ON_DEVICE
from unhang.analyze.program.callpath import innermost, user_path
from unhang.analyze.situation import LateRank, Situation
from unhang.analyze.waits.open_calls import STALLED, InFlight, awaited_call, in_flight
from unhang.analyze.waits.waits_for import edges_on
from unhang.model import CollectiveCall, EvidenceLine, WaitEdge
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule

GIL = "Its dump has no stacks though its peers' have: these need the GIL, so Python was blocked there. "


@dataclass(frozen=True)
class Awaited:
    """Idle ranks that are awaited in one call. `call`: that call as one of the waiting peers made it."""

    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    edges: tuple[WaitEdge, ...]
    call: CollectiveCall | None


@rule("never-issued", needs=("calls",), names=Names.FAILURE)
def never_issued(s: Situation) -> Iterator[Found]:
    """Each call that idle ranks have not issued; which of several it is, is not told where dumps have lost their beginning."""
    if not s.judges_waits or s.failures:
        return
    yield from _without_a_stack(s)
    if _has_hidden_transfers(s):
        return
    explained = {r for d in s.divergences for r in d.odd}
    found = [a for a in _awaited(s) if not set(a.ranks) <= explained]
    ranks = tuple(sorted({r for a in found for r in a.ranks}))
    # A call that keeps a rank may be overwritten where its buffer has wrapped, and it does not say how far it is.
    table = s.case.calls
    if len(found) > 1 and any(r in table.wrapped_ranks and r not in table.progress["rank"] for r in ranks):
        victims = tuple(sorted({v for a in found for v in a.victims} - set(ranks)))
        first = _never(s, found[0])
        words = {**first.words, "who": w.name_ranks(ranks), "awaited": _awaited_by(found[0].edges[0])}
        yield replace(first, culprits=ranks, victims=victims, confidence=0.45, words=words, say="one_of")
        return
    alone: set[int] = set()
    for i, a in enumerate(found):
        wrong = _intruders(s, a)
        if wrong or not _may_be_ahead(s, a):
            yield _intrusion(s, a, wrong, i > 0) if wrong else _never(s, a)
        elif a.edges[0].waiter not in alone:
            alone.add(a.edges[0].waiter)
            yield _one_ahead(_never(s, a), a, is_one=ranks == a.ranks[:1])


def _without_a_stack(s: Situation) -> Iterator[Found]:
    """Each rank of a live job that owes a collective and is in no recorded call, where it could not be seen what it does."""
    waits = edges_on(s.waits, [late.rank for late in s.late])
    for late in s.late:
        evidence = s.case.ranks.get(late.rank)
        is_live = evidence is not None and bool(evidence.pending) and evidence.exit is None
        if not is_live or late.activity.kind != "unknown" or late.edge.kind != "collective" or s.divergence is not None:
            continue
        call = awaited_call(s.case.calls, late.rank, waits[late.rank], s.recorded.fronts)
        found = _never(s, Awaited((late.rank,), late.victims, tuple(waits[late.rank]), call))
        yield replace(found, say="no_stack", cause="")


def _one_ahead(said: Found, a: Awaited, is_one: bool) -> Found:
    """That it is either the rank which is alone in a call or those that have not come; `is_one`: there is one such rank in all."""
    words = {**said.words, "who": w.name_ranks(a.edges[0].targets), "alone": w.name_ranks((a.edges[0].waiter,))}
    culprits = a.ranks if is_one else ()
    return replace(said, confidence=0.45, culprits=culprits, words=words, say="ahead", location=None)


def _may_be_ahead(s: Situation, a: Awaited) -> bool:
    """Whether one rank alone is in a call to which others have not come as far as dumps of open calls tell.

    One rank that makes a call too many looks like this, and so do several that stopped before it. Where a dump does not say
    how far its rank is in the group, the call may also be done there, and open on the one rank whose device stopped.
    """
    if not s.case.calls.active_ranks.issuperset(a.ranks) or len({e.waiter for e in a.edges}) > 1:
        return False
    table = s.case.calls
    names = {e.group for e in a.edges}
    counted = zip(table.progress["rank"].tolist(), table.progress["group"].tolist(), strict=True)
    is_unnamed = not any(rank in a.ranks and table.groups[group].name in names for rank, group in counted)
    is_collective = all(e.kind == "collective" for e in a.edges)
    waits_alone = (
        len(s.recorded.fronts) == 1 and len(s.case.world) > 2
    )  # all others hold nothing: who stopped keeps more
    return is_unnamed or waits_alone or (is_collective and len(a.ranks) > 1)


def _awaited(s: Situation) -> list[Awaited]:
    """The idle roots, those that miss the same call together."""
    waits = edges_on(s.waits, [late.rank for late in s.idle_roots])
    by_call: dict[object, list[tuple[LateRank, CollectiveCall | None]]] = {}
    for late in s.idle_roots:
        call = awaited_call(s.case.calls, late.rank, waits[late.rank], s.recorded.fronts)
        alone = call is None or call.is_p2p
        key = (late.rank,) if alone or call is None else (call.group.name, call.group.ranks, call.seq)
        by_call.setdefault(key, []).append((late, call))
    found = []
    for members in by_call.values():
        ranks = tuple(sorted(late.rank for late, _ in members))
        own = members[0][1].rank if members[0][1] else None
        victims = {v for late, _ in members for v in late.victims}
        edges = tuple(sorted((e for r in ranks for e in waits[r]), key=lambda e: (e.waiter != own, e.since_ns or 0)))
        found.append(Awaited(ranks, tuple(sorted(victims - set(ranks))), edges, members[0][1]))
    return sorted(found, key=lambda a: (-len(a.victims), a.ranks))


def _intruders(s: Situation, a: Awaited) -> tuple[int, ...]:
    """The waiting ranks, if it is they who made a call that does not belong there."""
    waiters = tuple(sorted({e.waiter for e in a.edges}))
    if a.call is None or (len(waiters) > len(a.ranks) and not a.call.is_p2p):
        return ()
    left = s.departures(waiters)
    return tuple(sorted(left)) if left and not s.departures(a.ranks) else ()


def _has_hidden_transfers(s: Situation) -> bool:
    """Whether ranks made calls that gloo does not record: a rank without an open call may then wait in one of them."""
    if s.case.job.backend != "gloo":
        return False
    progress = (s.case.calls.progress[n].tolist() for n in ("rank", "group", "enqueued"))
    return any(enqueued > s.index.last(group).get(rank, 0) for rank, group, enqueued in zip(*progress, strict=True))


def _awaited_by(edge: WaitEdge) -> str:
    """What a wait needs of its target."""
    return f"the other side of rank {edge.waiter}'s {edge.what.split()[0]}" if edge.kind == "p2p" else edge.what


def _never(s: Situation, a: Awaited) -> Found:
    who, last = w.name_ranks(a.ranks), _last_call(s, a.ranks[0])
    path = user_path(a.call.frames) if a.call else ()
    call = a.call if a.call and not a.call.is_p2p else None
    rank0_alone = a.ranks == (0,) and a.call is not None and _is_barrier(a.call)
    words = {
        "who": who,
        "first": who,
        "what": f"{w.name_call(call)} #{call.seq} of {call.group}" if call else _awaited_by(a.edges[0]),
        "at": w.at_end_of(path),
        "have": w.verb(a.ranks, "has", "have"),
        "it": w.verb(a.ranks, "it", "them"),
        "after": f" after {w.name_call(last)} #{last.seq} of {last.group}" if last else "",
        "gil": GIL if _lacks_stacks(s, a) else "",
        "barrier": "Behind a barrier this is most often work that rank 0 does alone. " if rank0_alone else "",
        "victims": w.name_ranks(a.victims),
        "wait": w.verb(a.victims, "waits", "wait"),
    }
    return Found(
        0.9,
        a.ranks,
        (*_last_lines(s, a.ranks), *_call_lines(a.call), *map(w.waiting_line, a.edges[:3])),
        words,
        "never",
        ("look",),
        victims=a.victims,
        location=innermost(path),
        group=w.group_of(a.call.group) if a.call else w.group_named(a.edges[0].group),
        collective=w.collective_of(a.call, a.call.seq) if a.call else None,
        cause="slow-rank0-work" if rank0_alone else "",
        is_root=True,
    )


def _lacks_stacks(s: Situation, a: Awaited) -> bool:
    """Whether the ranks dumped calls without stacks, and the rank that waits with them."""
    frames = s.case.calls["frames"]
    mine = [frames[s.case.calls.rank_rows(r)] for r in a.ranks]
    return bool(a.call and a.call.frames) and all(len(rows) and not (rows >= 0).any() for rows in mine)


def _is_barrier(call: CollectiveCall) -> bool:
    return bare_op(call.op) == "barrier" or (bare_op(call.op) == "all_reduce" and sum(numels(call.in_sizes)) <= 1)


def _intrusion(s: Situation, a: Awaited, wrong: tuple[int, ...], is_later: bool) -> Found:
    call = s.case.calls.call(s.departures(wrong)[wrong[0]])
    path = user_path(call.frames)
    words = {
        "who": w.name_ranks(wrong),
        "call": f"{w.name_call(call)} of {call.group}",
        "at": "," + w.at_end_of(path) if path else "",
        "ranks": w.name_ranks(a.ranks),
    }
    return Found(
        0.8,
        wrong,
        (*_call_lines(call), *_last_lines(s, a.ranks), *map(w.waiting_line, a.edges[:4])),
        words,
        "intruder",
        ("same calls",),
        tuple(sorted(set(a.victims) - set(wrong))),
        cause="code-divergence",
        is_root=is_later,
        **w.at_call(call, innermost(path)),
    )


def _last_call(s: Situation, rank: int) -> CollectiveCall | None:
    rows = s.case.calls.rank_rows(rank)
    return s.case.calls.call(rows.stop - 1) if rows.stop > rows.start else None


def _last_lines(s: Situation, ranks: Sequence[int]) -> Iterator[EvidenceLine]:
    for rank in ranks[:3]:
        last = _last_call(s, rank)
        if last is not None:
            path = user_path(last.frames)
            text = f"its last call was {w.name_call(last)} #{last.seq} of {last.group}{w.at_end_of(path)}"
            yield EvidenceLine(f"rank {rank} calls", text, path[-1].line if path else None)
        else:
            yield EvidenceLine(f"rank {rank} calls", "its dump holds no open call")


def _call_lines(call: CollectiveCall | None) -> Iterator[EvidenceLine]:
    if call is not None:
        yield w.path_line(call.rank, f"#{call.seq} {w.name_call(call)} of {call.group} (waits)", user_path(call.frames))


@rule("not-completed", needs=("calls",), names=Names.FAILURE)
def not_completed(s: Situation) -> Iterator[Found]:
    """The oldest such call, or each that a device has not begun, if nothing else explains the hang."""
    if not s.is_hang or s.failures or s.divergences or s.proven or s.case.job.backend == "gloo":
        return
    stalled = s.recorded.stalled
    if any(late.rank not in stalled and not s.recorded.is_unseen(late.rank) for late in s.late):
        return
    flights = in_flight(s)
    for flight in [f for f in flights if stalled.intersection(f.behind)] or flights[:1]:
        # A device that is seen to stand still needs no rank without a dump to explain it.
        is_seen = flight.behind and s.case.calls.active_ranks.isdisjoint(flight.behind)
        if not s.late or is_seen or stalled.intersection(flight.behind):
            yield _stands(s, flight)


def _stands(s: Situation, f: InFlight) -> Found:
    path = user_path(f.call.frames)
    words = {
        "who": w.name_ranks(f.behind or f.members),
        "what": f"{w.name_call(f.call)} #{f.call.seq} of {f.call.group}",
        "how": f.how,
    }
    evidence = (
        w.path_line(f.call.rank, f"#{f.call.seq} {w.name_call(f.call)} (open)", path),
        *(EvidenceLine(f"rank {r} calls", f.how) for r in f.behind[:4]),
    )
    return Found(
        0.75 if f.behind else 0.45,
        f.behind,
        evidence,
        words,
        "own" if f.how == STALLED else "behind" if f.behind else "none",
        None,
        tuple(r for r in s.case.world if r not in f.behind),
        **w.at_call(f.call, innermost(path)),
    )


def candidates(s: Situation) -> tuple[int, ...]:
    """The ranks, one of which started it.

    Those that are waited for and left no dump; others without a dump for which these may be waiting in turn; and idle ranks
    that only these can be waiting for. A device that has not begun what its peers have is as good an explanation.
    """
    without = {r for r in s.case.world if s.recorded.is_unseen(r)}
    found, pending = set[int](), {late.rank for late in s.unseen_roots}
    while pending:
        found |= pending
        near = {r for g in s.case.groups if pending & set(g.ranks) for r in g.ranks}
        pending = near & without - found
    near = {r for g in s.case.groups if found & set(g.ranks) for r in g.ranks}
    stalled = {r for flight in in_flight(s) for r in flight.behind}
    return tuple(sorted(found | stalled | {r for r in near if s.recorded.is_idle(r)}))


@rule("no-dump", needs=("calls",), names=Names.FAILURE)
def no_dump(s: Situation) -> Found | None:
    """Ranks that others wait for and that left no dump, if nothing else explains the waits."""
    if not s.judges_waits or s.failures or s.divergences or s.idle_roots or not s.unseen_roots:
        return None
    if s.recorded.stalled or any(late.edge.kind not in ("collective", "p2p") for late in s.unseen_roots):
        return None  # a device that stands still needs no other cause
    unseen, open_to = tuple(sorted(late.rank for late in s.unseen_roots)), candidates(s)
    is_sure, is_alive = len(open_to) == 1, any(r in s.case.ranks for r in unseen)
    victims = tuple(sorted({v for late in s.unseen_roots for v in late.victims} - set(unseen)))
    is_watched = any(e.identity.pid is not None for e in s.case.ranks.values())
    is_gone = s.standing is not None and is_sure and len(unseen) == 1 and not is_alive  # the job is looked at late
    one_of = f"ne of ranks {w.ranges(open_to)} started it"
    words = {
        "who": w.name_ranks(unseen),
        "dumps": len(ranks_with_dump(s.case)),
        "world": len(s.case.world),
        "waits": f"{w.name_ranks(victims)} {w.verb(victims, 'waits', 'wait')}",
        "lacks": "has no process any more" if is_gone else _lacks(unseen, is_watched, is_alive),
        "it": w.verb(unseen, "it", "them"),
        "its": w.verb(unseen, "its", "their"),
        "log": w.verb(unseen, "its log and exit code", "their logs and exit codes"),
        "node": w.verb(unseen, "its node", "their nodes"),
        "one_of": "" if is_sure else f": o{one_of}",
        "why": _GONE if is_gone else _why(is_watched, is_alive) if is_sure else f" O{one_of}; nothing tells which one.",
    }
    return Found(
        # A file may be lost too, and the call stand still for another reason: only a watcher knows that there was nobody.
        (0.8 if is_watched else 0.45) if is_sure else 0.4,
        unseen if is_sure else (),
        tuple(w.waiting_line(late.edge) for late in s.unseen_roots[:4]),
        words,
        "lacks" if is_sure or is_watched else "given",
        None,
        victims,
        cause="" if is_sure and is_watched and not is_alive and not is_gone else "unknown",
    )


_GONE = " The other ranks run, it does not: it ended before anybody looked, and how is for its launcher and its log to tell."


def _lacks(unseen: Sequence[int], is_watched: bool, is_alive: bool) -> str:
    """Who is missing where `unhang` watched the job left no sign of life, not only no dump."""
    if not is_watched:
        return "left no dump"
    if len(unseen) > 1:
        return "left no sign of what they do"
    return "gave neither its calls nor a stack" if is_alive else "never registered"


def _why(is_watched: bool, is_alive: bool) -> str:
    if is_alive:
        return " Its process is there, but gave neither its calls nor a stack."
    if is_watched:
        return " No process of it was seen: it was never started, or died before it imported torch.distributed."
    return " Its process was dead or could not write, or the file is lost."


# A rule on calls that differed and completed all the same: NCCL compares neither operations nor sizes.


@rule("passed-unnoticed", needs=("calls",))
def passed_unnoticed(s: Situation) -> Found | None:
    """The oldest, in a job that neither hangs nor failed: else what ended it is told first."""
    if s.is_hang or s.is_crash or s.primary_failure is not None:
        return None
    found = next((m for m in passed_mismatches(s.index) if m.group.backend == ON_DEVICE), None)
    return None if found is None else _described(s, found)


def _described(s: Situation, found: StuckCollective) -> Found:
    reference, odd = found.classes[0], tuple(sorted(r for part in found.classes[1:] for r in part))
    mine, theirs = found.calls[odd[0]], found.calls[reference[0]]
    path, culprits = user_path(mine.frames), odd if found.has_majority else ()
    is_of_size = bare_op(mine.op) == bare_op(theirs.op)
    return Found(
        0.9,
        culprits,
        [
            w.path_line(call.rank, f"#{found.seq} {w.name_call(call)} (completed)", user_path(call.frames))
            for call in (mine, theirs)
        ],
        {
            "odd": w.name_ranks(odd),
            "mine": w.name_call(mine),
            "others": w.name_ranks(reference),
            "theirs": w.name_call(theirs),
            "seq": found.seq,
            "group": found.group,
        },
        "sizes" if is_of_size else "calls",
        ("shape",) if is_of_size else ("same",),
        location=innermost(path),
        group=w.group_of(found.group),
        collective=w.collective_of(mine, found.seq),
        cause="size-mismatch" if is_of_size else "code-divergence",
    )
