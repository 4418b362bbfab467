"""Rules that accuse nobody: a part of the job is out of sight, or it was ended from outside while it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, WaitEdge, user_frames
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule

_MOST_LISTED = 3


@rule("not-in-sight", needs=("ranks",), names=Names.NOTHING)
def not_in_sight(s: Situation) -> Found | None:
    """What the ranks that can be seen wait for, or have lost; nobody is accused."""
    if not s.case.out_of_sight or (s.late and s.is_hang) or s.primary_failure is not None:
        return None
    unseen = tuple(late.rank for late in sorted(s.out_of_sight, key=lambda late: late.rank))
    waiting = tuple(sorted({v for late in s.out_of_sight for v in late.victims} - set(unseen)))
    if s.is_hang and waiting:
        return _unseen(s, waiting, unseen, w.verb(waiting, "waits for", "wait for"))
    failed = tuple(sorted(f.rank for f in s.failures))
    return _unseen(s, failed, s.case.out_of_sight, "lost a peer; what failed first may be") if failed else None


def _unseen(s: Situation, ranks: tuple[int, ...], unseen: tuple[int, ...], what: str) -> Found:
    others, hosts = w.name_ranks(unseen), sorted({e.identity.host for e in s.case.ranks.values() if e.identity.host})
    words = {
        "who": w.name_ranks(ranks),
        "what": what,
        "others": others,
        "Others": others[0].upper() + others[1:],
        "are": w.verb(unseen, "is", "are"),
        "run": w.verb(unseen, "runs", "run"),
        "they": w.verb(unseen, "it", "they"),
        "seen": w.name_ranks(s.case.in_sight) + (f" on {', '.join(hosts[:4])}" if hosts else ""),
        "reports": " ".join(s.case.job.report_dirs) or "THIS_REPORT",
    }
    raised = [(f.rank, f.error) for f in s.failures[:4] if f.error]
    evidence = (
        *w.unheard_lines(s.case, unseen),
        *(w.waiting_line(late.edge) for late in s.out_of_sight[:4]),
        *(EvidenceLine(f"rank {rank} exception", f"{e.type}: {e.message}"[:200]) for rank, e in raised),
    )
    return Found(0.3, (), evidence, words, victims=ranks)


@rule("interrupted", names=Names.NOTHING)
def interrupted(s: Situation) -> Found | None:
    """What the ranks were doing when a signal ended the job; nobody is accused."""
    if not s.is_interrupted:
        return None
    places, by = _places(s), s.case.job.interrupted_by
    doing = [*_working(places), *_waiting(s)]
    if len(doing) > _MOST_LISTED:
        doing[_MOST_LISTED:] = [f"{len(doing) - _MOST_LISTED} more sets of ranks elsewhere"]
    words = {
        "ended": "you ended it (Ctrl-C)" if by == "SIGINT" else f"{by} ended it",
        "when": f"while {w.listed(doing)}" if doing else "before a rank had registered",
        "oldest": _oldest(s),
    }
    first = [ranks[0] for ranks in list(places.values())[:_MOST_LISTED]]
    evidence = (
        *(w.waiting_line(edge) for edge in s.waits.edges[:_MOST_LISTED]),
        *(line for rank in first for line in w.stack_lines(s.case.ranks[rank])),
    )
    return Found(0.97, (), evidence, words, fixes=None if s.waits.edges else ())


def _oldest(s: Situation) -> str:
    """How long the oldest wait had lasted, by the job's own clock."""
    began_ns = min((edge.since_ns for edge in s.waits.edges if edge.since_ns), default=0)
    lasted_s = (s.case.job.interrupted_ns - began_ns) / 1e9 if began_ns else 0.0
    return f" The oldest wait had lasted {lasted_s:.1f} s." if lasted_s > 0 else ""


def _places(s: Situation) -> dict[str, list[int]]:
    """The ranks that wait for nobody, by the line in which they were; "" where no stack could be taken."""
    waiting = {edge.waiter for edge in s.waits.edges}
    found: dict[str, list[int]] = {}
    for rank, evidence in s.case.ranks.items():
        if rank not in waiting:
            stack = evidence.main_stack
            frame = next(iter(user_frames(stack.frames)), None) if stack else None
            found.setdefault(f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame else "", []).append(rank)
    return found


def _working(places: Mapping[str, list[int]]) -> Iterator[str]:
    for place, ranks in places.items():
        where = f"in {place}" if place else "where no stack could be taken"
        yield f"{w.name_ranks(ranks)} {w.verb(ranks, 'was', 'were')} {where}"


def _waiting(s: Situation) -> Iterator[str]:
    """What the others wait in, by call."""
    oldest: dict[int, WaitEdge] = {}
    for edge in sorted(s.waits.edges, key=lambda e: e.since_ns or 0):
        oldest.setdefault(edge.waiter, edge)
    calls: dict[str, list[int]] = {}
    for rank, edge in sorted(oldest.items()):
        calls.setdefault(edge.what.removesuffix(" of default_pg"), []).append(rank)
    yield from (f"{w.name_ranks(ranks)} waited in {call}" for call, ranks in calls.items())
