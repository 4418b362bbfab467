"""Rules on what NCCL's RAS client reports: who has launched less than its peers, and whose data is missing."""

from __future__ import annotations

from collections.abc import Sequence

from unhang.analyze.situation import Situation
from unhang.model import user_frames
from unhang.read.ras import Counts, Member, Report, reports_in
from unhang.rules import wording as w
from unhang.rules.base import Found, Names, rule
from unhang.rules.log_lines import quote

_NOT_OF_A_MOMENT = 2
_MOST_NAMED = 4
_Who = tuple[str, int, int | None]


def _ranks(s: Situation, members: Sequence[Member]) -> tuple[int, ...]:
    """The ranks of the job, where all of them are known; by their processes where these are the recorder's."""
    pids = [e.identity.pid for e in s.case.ranks.values()]
    known = {
        e.identity.pid: rank for rank, e in s.case.ranks.items() if e.identity.pid and pids.count(e.identity.pid) == 1
    }
    ranks = [m.rank if m.rank is not None else known.get(m.pid or 0) for m in members]
    found = {rank for rank in ranks if rank is not None}
    return tuple(sorted(found)) if None not in ranks else ()


def _who(m: Member) -> _Who:
    """A process with its GPU: a communicator numbers its ranks in its own way."""
    return m.node, m.pid or 0, m.rank if m.rank is not None else m.member if m.pid is None else None


def _named(ranks: Sequence[int], members: Sequence[Member]) -> str:
    if ranks:
        return w.name_ranks(ranks)
    found = list(dict.fromkeys(f"process {m.pid} on {m.node}" if m.pid else f"member {m.member}" for m in members))
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return ", ".join(found[:_MOST_NAMED]) + more


@rule("ras-lags", names=Names.FAILURE)
def ras_lags(s: Situation) -> Found | None:
    """Whoever is behind in every communicator that differs: a victim waits in one of them, and is not behind there."""
    reports = reports_in(s.events, s.case.log)
    if not reports or reports[-1].missing_events or reports[-1].is_cut or not reports[-1].counts:
        return None
    last, before = reports[-1], reports[-2] if len(reports) > 1 else None
    if not all(c.is_whole and c.behind for c in last.counts) or not any(_is_minority(c) for c in last.counts):
        return None
    sets = [{_who(m) for m in c.behind} for c in last.counts]
    alike = set.intersection(*sets)
    members = [m for c in last.counts for m in c.behind if _who(m) in alike]
    if not members or any(_moved(c, before) for c in last.counts):
        return None
    first = next(c for c in last.counts if _is_minority(c))
    behind = first.most - max(m.launched or 0 for m in first.behind)
    is_still = before is not None and all(_stayed(c, before) for c in last.counts)
    if not (is_still or s.is_hang or behind >= _NOT_OF_A_MOMENT):
        return None
    ranks = _ranks(s, members)
    words = {
        "who": _named(ranks, members),
        "behind": f"{behind} {first.operation} operation{'s' if behind > 1 else ''}",
    }
    words["are"] = "is" if len({_who(m) for m in members}) == 1 else "are"
    words["communicator"] = first.communicator
    return Found(
        0.65 if is_still or s.is_hang else 0.5,
        ranks,
        quote(e for c in last.counts for e in c.events),
        words,
        say="still" if is_still else "hang" if s.is_hang else "",
        victims=s.others(ranks) if ranks else (),
    )


def _is_minority(counts: Counts) -> bool:
    """Else it may be the others that made a call too many."""
    return 0 < 2 * len(counts.behind) < sum(counts.shares.values())


def _earlier(counts: Counts, before: Report | None) -> dict[_Who, int | None]:
    found = before.counts if before is not None else []
    return {
        _who(m): m.launched
        for c in found
        if (c.communicator, c.operation) == (counts.communicator, counts.operation)
        for m in c.members
    }


def _moved(counts: Counts, before: Report | None) -> bool:
    """Whether one that is behind had another count in the report before."""
    earlier = _earlier(counts, before)
    return any(earlier.get(_who(m), m.launched) != m.launched for m in counts.behind)


def _stayed(counts: Counts, before: Report) -> bool:
    earlier = _earlier(counts, before)
    return all(earlier.get(_who(m)) == m.launched for m in counts.behind)


@rule("ras-crossed")
def ras_crossed(s: Situation) -> Found | None:
    """The first crossing of the last report."""
    found = s.crossing
    if found is None:
        return None
    ranks = _ranks(s, found.odd)
    words = {
        "who": _named(ranks, found.odd),
        "have": "has" if len({_who(m) for m in found.odd}) == 1 else "have",
        "more": found.more.operation,
        "less": found.less.operation,
        "communicator": found.more.communicator,
    }
    evidence = s.case.ranks.get(ranks[0]) if ranks else None
    stack = evidence.main_stack if evidence is not None else None
    frame = next(iter(user_frames(stack.frames)), None) if stack is not None else None
    events = (*found.more.events, *found.less.events)
    victims = s.others(ranks) if ranks else ()
    return Found(0.85, ranks, quote(events), words, victims=victims, location=w.location_of(frame))


@rule("ras-missing", names=Names.FAILURE)
def ras_missing(s: Situation) -> Found | None:
    """Processes that do not answer RAS, by the last report; nobody is named where half of a communicator does not answer."""
    reports = reports_in(s.events, s.case.log)
    if not reports or not reports[-1].missing_events:
        return None
    last = reports[-1]
    ranks = _ranks(s, last.missing)
    if 2 * len(ranks) >= max(last.world, last.largest):
        ranks = ()
    who = _named(ranks, last.missing)
    if not who and last.processes:
        node, pid = min(last.processes)
        who = f"process {pid} on {node}" + (f" and {len(last.processes) - 1} more" if len(last.processes) > 1 else "")
    words = {"who": who or "some processes", "are": "is" if max(len(ranks), len(last.processes)) == 1 else "are"}
    words["do"] = "does" if words["are"] == "is" else "do"
    return Found(
        0.6 if last.dead else 0.45,
        ranks,
        quote(last.missing_events),
        words,
        say="dead" if last.dead else "",
        victims=s.others(ranks) if ranks else (),
    )
