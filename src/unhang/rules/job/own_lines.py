"""Rules on how far each rank came, as the ranks' own lines or NCCL's RAS client tell it: one skips or leaves, some count differently, or launched less than their peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Protocol, TypeVar

from unhang.analyze.lines import told_apart
from unhang.analyze.lines.first_errors import first_error
from unhang.analyze.lines.log_progress import trained_on_after, work_before_the_wait
from unhang.analyze.lines.logged_calls import lines_of
from unhang.analyze.lines.odd_ones import Told, counted_past, late_in_common_work, told_its_end
from unhang.analyze.lines.own_lines import OwnLine
from unhang.analyze.lines.parted_ways import began_another_work
from unhang.analyze.situation import Situation
from unhang.model import grouped
from unhang.read.ras import Counts, Member, Report, reports_in
from unhang.rules import wording as w
from unhang.rules.advice import OF_THE_DATA, OF_THE_PROGRAM, SEE_IT
from unhang.rules.base import OTHERWISE, Find, Found, Names, rule
from unhang.rules.log_lines import MOST_WORDS, found_in, quote, quote_own

_MOST_RANKS = 4096
T = TypeVar("T")


class _ToldApart(Protocol):
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def lines(self) -> Sequence[OwnLine]: ...


def _told_by(name: str, look: Callable[[Situation], T | None]) -> Callable[[Callable[[Situation, T], Found]], Find]:
    """Makes a function the rule on what `look` finds in the ranks' lines; it is not asked where something failed before they waited."""

    def register(say: Callable[[Situation, T], Found]) -> Find:
        def find(s: Situation) -> Found | None:
            first, waited = first_error(s), s.watchdogs.first
            has_failed = first is not None and (waited is None or first.order < waited.order)
            seen = None if has_failed else look(s)
            return None if seen is None else say(s, seen)

        return rule(name)(update_wrapper(find, say))

    return register


def _of(s: Situation, seen: _ToldApart, confidence: float, most: int = 2, **more: Any) -> Found:
    """What is found of ranks told apart, with the words {who}, {said}, {others} and {call}: who waited, and in what. `more`: words, and fields of `Found`."""
    waits, waited = s.watchdogs.timed_out, s.watchdogs.ranks
    words = {"who": w.name_ranks(seen.ranks), "said": seen.lines[0].said[:MOST_WORDS], "others": w.name_ranks(waited)}
    words |= {"call": str(waits[0]) if waits else "a call", **more.pop("words", {})}
    evidence = (*quote_own(seen.lines), *quote(lines_of(waits), most))
    return Found(confidence, seen.ranks, evidence, words, **{"victims": waited, **more})


@_told_by("skipped-by-some", told_apart.skipped_or_left)
def skipped_by_some(s: Situation, apart: told_apart.Apart) -> Found:
    """Surer where a wait ran out behind it than where somebody ended the job."""
    sure, others = 0.75 if s.watchdogs.first is not None else 0.62, s.others(apart.ranks)
    words = {"others": w.name_ranks(others) if others else "the others"}
    fixes, cause = (OF_THE_DATA, "uneven-inputs") if apart.is_data else (OF_THE_PROGRAM, "")
    return _of(s, apart, sure, words=words, fixes=fixes, victims=others, cause=cause)


@_told_by("another-branch", told_apart.another_branch)
def in_another_branch(s: Situation, apart: told_apart.Apart) -> Found:
    """Several ranks that never came to the call in which the others waited, where both sides tell what they did instead."""
    wait = s.watchdogs.timed_out[0]
    return _of(s, apart, 0.75, fixes=OF_THE_PROGRAM, collective={"op": wait.op, "seq": wait.seq})


@_told_by("told-in-another-order", told_apart.in_another_order)
def told_in_another_order(s: Situation, apart: told_apart.Apart) -> Found:
    """The fewer ranks; each of two calls needs all."""
    first, other = (x.said[:MOST_WORDS] for x in apart.lines[:2])
    who = w.name_ranks(apart.ranks) if apart.ranks else f"rank {apart.lines[0].rank}"
    return _of(s, apart, 0.72, most=2, words={"who": who, "first": first, "other": other}, fixes=OF_THE_PROGRAM)


@_told_by("began-another-work", began_another_work)
def has_begun_another_work(s: Situation, apart: told_apart.Apart) -> Found:
    """The fewer ranks, where all wait in the call of one number, and none is late."""
    wait, first, other = s.watchdogs.timed_out[0], apart.lines[0], apart.lines[-1]
    who = w.name_ranks(apart.ranks) if apart.ranks else f"rank {first.rank}"
    words = {"who": who, "first": first.said[:MOST_WORDS], "other": other.said[:MOST_WORDS]}
    collective = {"op": wait.op, "seq": wait.seq}
    return _of(s, apart, 0.72, words=words, fixes=OF_THE_PROGRAM, victims=s.others(apart.ranks), collective=collective)


@_told_by(
    "call-of-a-few", lambda s: None if work_before_the_wait(s.events) is not None else told_apart.few_in_a_call(s)
)
def call_of_a_few(s: Situation, few: told_apart.FewInACall) -> Found:
    """The ranks that wait, if they are fewer; of two halves neither is accused."""
    waits = [x for x in s.watchdogs.timed_out if x.rank in few.waiting]
    counters = [c.event for c in s.watchdogs.counters if c.rank in few.idle]
    words = {
        "who": w.name_ranks(few.waiting),
        "call": few.wait,
        "others": w.name_ranks(few.idle),
        "have": w.verb(few.idle, "has", "have"),
    }
    return Found(
        0.68,
        few.waiting if len(few.waiting) < len(few.idle) else (),
        (*quote(lines_of(waits), 3), *quote(counters, 3)),
        words,
        fixes=OF_THE_PROGRAM,
        collective={"op": few.wait.op, "seq": few.wait.seq},
        victims=(),
    )


def _side_of(line: OwnLine, unlike: told_apart.Unlike) -> Sequence[str]:
    if unlike.is_fewer:
        return (str(line.rank in unlike.odd),)
    return line.values if unlike.place is None else (line.values[unlike.place],)


@_told_by("unlike-numbers", told_apart.unlike_numbers)
def unlike_in_the_last_round(s: Situation, unlike: told_apart.Unlike) -> Found:
    """A shape is of a tensor that they exchange; batches are what a loop goes by, and explain that the calls differ; other numbers may decide a branch."""
    sides = grouped((_side_of(line, unlike), line) for line in unlike.lines)
    fewest = min(map(len, sides.values()))
    few = [side for side in sides.values() if len(side) == fewest]
    culprits = unlike.odd or (tuple(x.rank for x in few[0] if x.rank is not None) if len(few) == 1 else ())
    first, other = (side[0].said[:MOST_WORDS] for side in list(sides.values())[:2])
    is_rounds = unlike.is_rounds and not unlike.is_shape
    return Found(
        0.78 if is_rounds else 0.75 if unlike.is_shape else 0.65,
        culprits,
        (*quote_own(unlike.lines), *quote(lines_of(s.watchdogs.timed_out), 2)),
        {"first": first, "other": other, "who": w.name_ranks(culprits)},
        f"{'shape' if unlike.is_shape else OTHERWISE}/{'fewer' if unlike.is_fewer else 'calls' if unlike.odd else OTHERWISE}",
        fixes=OF_THE_DATA if is_rounds else OF_THE_PROGRAM,
        cause="size-mismatch" if unlike.is_shape else "uneven-inputs" if is_rounds else "",
    )


@rule("fewer-shards")
def fewer_shards(s: Situation) -> Found | None:
    """Where somebody waited too long and nobody had trained on since; the ranks that the library's way to share leaves without one."""
    events = [e for e in s.events.of("loader.few_shards") if not trained_on_after(s.events, e)]
    if not events or not any(e.says == "hang" and e.order > events[0].order for e in s.events):
        return None
    ranks, shards = events[0].number("ranks") or 0, events[0].number("shards") or 0
    is_of_all = s.case.job.world_size in (None, ranks) and 0 < shards < ranks < _MOST_RANKS
    none = tuple(range(shards, ranks)) if is_of_all else ()
    words = {"ranks": ranks, "shards": shards, "who": w.name_ranks(none) if none else "some ranks"}
    words["have"] = w.verb(none, "has", "have") if none else "have"
    return found_in(s, events, 0.9, none, words=words, fixes=OF_THE_DATA)


@_told_by("took-longer", told_apart.took_longer)
def took_longer_than_others(s: Situation, late: told_apart.TookLonger) -> Found:
    """Ranks at work for longer than the others waited: late, not missing."""
    return _of(s, late, 0.78, words={"seconds": f"{late.seconds:.0f}", "usual": f"{late.usual_s:.3g}"})


_HCCL_LIMIT_S = 120


@rule("late-to-connect")
def late_to_connect(s: Situation) -> Found | None:
    """Where HCCL gave up on a rank that had not come to make the communicator, and the ranks tell how long each took for the same thing before."""
    waits = s.events.of("hccl.socket_timed_out")
    told = [n for e in s.events.of("hccl.connect_limit") if (n := e.number("seconds"))]
    limit = max(told, default=_HCCL_LIMIT_S)
    late = told_apart.later_by(s, limit) if waits else None
    if late is None:
        return None
    words = {
        "who": w.name_ranks(late.ranks),
        "seconds": f"{late.seconds:.0f}",
        "usual": f"{late.usual_s:.0f}",
        "limit": limit,
    }
    evidence = (*quote_own(late.lines), *quote(waits, 2))
    return Found(0.8, late.ranks, evidence, words, cause="" if late.ranks == (0,) else "straggler")


@_told_by("counted-past", counted_past)
def counted_past_the_waiting(s: Situation, past: Told) -> Found:
    """Ranks that are done with a loop in which others wait: they had fewer rounds, or left early."""
    words = {"theirs": past.lines[-1].said[:MOST_WORDS]}
    return _of(s, past, 0.78, words=words, fixes=OF_THE_DATA, victims=None)


@_told_by("told-its-end", told_its_end)
def ended_by_its_own_word(s: Situation, told: Told) -> Found:
    """The rank that said that it ends."""
    return _of(s, told, 0.79, most=3, fixes=("together", SEE_IT))


@_told_by("late-in-common-work", late_in_common_work)
def late_with_common_work(s: Situation, late: Told) -> Found:
    """Ranks still at work that the others are done with."""
    return _of(s, late, 0.62, most=3, words={"are": w.verb(late.ranks, "was", "were")})


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
    frame = w.own_line(stack.frames) if stack is not None else None
    events = (*found.more.events, *found.less.events)
    return Found(0.85, ranks, quote(events), words, location=frame)


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
    return Found(0.6 if last.dead else 0.45, ranks, quote(last.missing_events), words, say="dead" if last.dead else "")
