"""Rule: a rank has not issued the call that its peers wait for, and no stack tells why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from unhang.analyze.callpath import user_path
from unhang.analyze.graph import edges_on
from unhang.analyze.positions import bare_op, numels
from unhang.analyze.siblings import awaited_call
from unhang.analyze.situation import LateRank, Situation
from unhang.model import CollectiveCall, EvidenceLine, Finding, Fix, WaitEdge
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import make_case

_OPEN = "all_reduce[8]@main:10 !"
_DONE = "all_reduce[8]@main:10"


@dataclass(frozen=True)
class Awaited:
    """Idle ranks that are awaited in one call. `call`: that call as one of the waiting peers made it."""

    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    edges: tuple[WaitEdge, ...]
    call: CollectiveCall | None


def awaited(s: Situation) -> list[Awaited]:
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


def intruders(s: Situation, a: Awaited) -> tuple[int, ...]:
    """The waiting ranks, if it is they who made a call that does not belong there."""
    waiters = tuple(sorted({e.waiter for e in a.edges}))
    if a.call is None or (len(waiters) > len(a.ranks) and not a.call.is_p2p):
        return ()
    left = s.departures(waiters)
    return tuple(sorted(left)) if left and not s.departures(a.ranks) else ()


def has_hidden_transfers(s: Situation) -> bool:
    """Whether ranks made calls that gloo does not record: a rank without an open call may then wait in one of them."""
    table = s.case.calls
    if s.case.job.backend != "gloo":
        return False
    told = (table.progress[n].tolist() for n in ("rank", "group", "enqueued"))
    return any(enqueued > s.index.last(group).get(rank, 0) for rank, group, enqueued in zip(*told, strict=True))


def may_have_lost_a_call(s: Situation, rank: int) -> bool:
    """Whether a call that keeps the rank may be overwritten: its buffer has wrapped, and it does not say how far it is."""
    table = s.case.calls
    return rank in table.wrapped_ranks and rank not in table.progress["rank"]


class NeverIssued(Rule):
    """A rank has not issued the call that its peers wait for, and no stack of it was taken.

    What it detects:
        Members of a group wait in a call; another member left a dump in which that call is not, and in which no call is open.
        Nothing that was recorded keeps it: its host is busy or stuck. If the waiting side is the one that did something new,
        it is named instead.

    Why it hangs:
        A collective completes when every member has issued it; a receive, when its send has been.

    How to confirm:
        The stack of that rank (py-spy dump --pid PID, on its node), or its log after its last call.

    How to fix:
        Depends on what the rank does: the stack decides between its own code, its loader, and work that only it does.

    Sources:
        PyTorch documentation, flight recorder: a rank without an active entry while its peers wait has stalled on the CPU.
    """

    id = "never-issued"
    cause = "unknown"
    needs = ("calls",)
    EXAMPLES: ClassVar = (
        Fires(make_case({1: [_DONE], **{r: [_DONE, _OPEN] for r in (0, 2, 3)}}), (1,), 10),
        Quiet(
            make_case({1: [_DONE], **{r: [_DONE, _OPEN] for r in (0, 2, 3)}}, hang=None),
            "a job that runs: somebody always waits for somebody",
        ),
        Quiet(
            make_case({r: [_DONE, _OPEN] for r in range(4)}),
            "everybody has issued the call",
        ),
        Quiet(
            make_case(
                {1: [_DONE], **{r: [_DONE, _OPEN] for r in (0, 2, 3)}},
                stacks={1: "main:8>load:33>~lock", **dict.fromkeys((0, 2, 3), "main:10>~comm")},
            ),
            "a stack tells more",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per call that idle ranks have not issued."""
        if not s.judges_waits or s.failures:
            return
        if has_hidden_transfers(s):
            return
        explained = {r for d in s.divergences for r in d.odd}
        found = [a for a in awaited(s) if not set(a.ranks) <= explained]
        ranks = tuple(sorted({r for a in found for r in a.ranks}))
        if len(found) > 1 and any(may_have_lost_a_call(s, r) for r in ranks):
            victims = tuple(sorted({v for a in found for v in a.victims} - set(ranks)))
            open_to = replace(_finding(s, found[0]), culprit_ranks=ranks, victim_ranks=victims, confidence=0.45)
            yield replace(open_to, title=_one_of(ranks, found[0]))
            return
        for i, a in enumerate(found):
            yield _intrusion(s, a, wrong, i > 0) if (wrong := intruders(s, a)) else _finding(s, a)


def _awaited_by(edge: WaitEdge) -> str:
    """What a wait needs of its target."""
    return f"the other side of rank {edge.waiter}'s {edge.what.split()[0]}" if edge.kind == "p2p" else edge.what


def _one_of(ranks: tuple[int, ...], a: Awaited) -> str:
    return f"one of {w.name_ranks(ranks)} stopped before {_awaited_by(a.edges[0])}: no open call is left in their dumps, which have lost their beginning"


def _is_barrier(call: CollectiveCall) -> bool:
    return bare_op(call.op) == "barrier" or (bare_op(call.op) == "all_reduce" and sum(numels(call.in_sizes)) <= 1)


def _finding(s: Situation, a: Awaited) -> Finding:
    who, last = w.name_ranks(a.ranks), _last_call(s, a.ranks[0])
    path = user_path(a.call.frames) if a.call else ()
    call = a.call if a.call and not a.call.is_p2p else None
    what = f"{w.name_call(call)} #{call.seq} of {call.group}" if call else _awaited_by(a.edges[0])
    rank0_alone = a.ranks == (0,) and a.call is not None and _is_barrier(a.call)
    after = f" after {w.name_call(last)} #{last.seq} of {last.group}" if last else ""
    return Finding(
        rule=NeverIssued.id,
        cause="slow-rank0-work" if rank0_alone else NeverIssued.cause,
        title=f"{who} never issued {what}" + (f" at {w.place(path[-1])}" if path else ""),
        confidence=0.9,
        culprit_ranks=a.ranks,
        victim_ranks=a.victims,
        because=f"{who} {w.verb(a.ranks, 'has', 'have')} issued nothing{after}, and no call keeps {w.verb(a.ranks, 'it', 'them')}: the host is busy or stuck. "
        + ("Behind a barrier this is most often work that rank 0 does alone. " if rank0_alone else "")
        + f"{w.name_ranks(a.victims)} {w.verb(a.victims, 'waits', 'wait')}, directly or not.",
        process_group=w.group_of(a.call.group) if a.call else {"pg_name": a.edges[0].group, "pg_desc": ""},
        collective=w.collective_of(a.call, a.call.seq) if a.call else None,
        location=w.location_of(path[-1] if path else None),
        evidence=(*_last_lines(s, a.ranks), *_call_lines(a.call), *map(w.waiting_line, a.edges[:3])),
        fixes=(_look(who),),
        is_root=True,
    )


def _intrusion(s: Situation, a: Awaited, wrong: tuple[int, ...], is_later: bool) -> Finding:
    row = s.departures(wrong)[wrong[0]]
    call = s.case.calls.call(row)
    path = user_path(call.frames)
    return Finding(
        rule=NeverIssued.id,
        cause="code-divergence",
        title=f"{w.name_ranks(wrong)} made {w.name_call(call)} of {call.group}, which no rank makes there"
        + (f", at {w.place(path[-1])}" if path else ""),
        confidence=0.8,
        culprit_ranks=wrong,
        victim_ranks=tuple(sorted(set(a.victims) - set(wrong))),
        because=f"It waits for {w.name_ranks(a.ranks)}, which did what it always does; neither its own past nor a peer foretold this call.",
        process_group=w.group_of(call.group),
        collective=w.collective_of(call, call.seq),
        location=w.location_of(path[-1] if path else None),
        evidence=(*_call_lines(call), *_last_lines(s, a.ranks), *map(w.waiting_line, a.edges[:4])),
        fixes=(
            Fix(
                "Let every rank make the same calls",
                patch="take the call out of the condition that only this rank meets, or let its peers make it too",
                verify="unhang run -- <the same command>",
                undo="revert the edit",
            ),
        ),
        is_root=is_later,
    )


def _last_call(s: Situation, rank: int) -> CollectiveCall | None:
    rows = s.case.calls.rank_rows(rank)
    return s.case.calls.call(rows.stop - 1) if rows.stop > rows.start else None


def _last_lines(s: Situation, ranks: tuple[int, ...]) -> Iterable[EvidenceLine]:
    for rank in ranks[:3]:
        last = _last_call(s, rank)
        if last is not None:
            path = user_path(last.frames)
            at = f" at {w.place(path[-1])}" if path else ""
            text = f"its last call was {w.name_call(last)} #{last.seq} of {last.group}{at}"
            yield EvidenceLine(f"rank {rank} calls", text, path[-1].line if path else None)
        else:
            yield EvidenceLine(f"rank {rank} calls", "its dump holds no open call")


def _call_lines(call: CollectiveCall | None) -> Iterable[EvidenceLine]:
    if call is not None:
        yield w.path_line(call.rank, f"#{call.seq} {w.name_call(call)} of {call.group} (waits)", user_path(call.frames))


def _look(who: str) -> Fix:
    return Fix(
        f"See what {who} does",
        command="py-spy dump --pid <its process>   # on its node, while the job hangs; or start it with: unhang run -- <the same command>",
        verify="the stack names the line, and 'unhang diagnose' the cause",
        undo="nothing is changed",
    )
