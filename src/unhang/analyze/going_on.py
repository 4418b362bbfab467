"""Who does not take part in a call in which others waited until their limit, by what a log prints beside and behind the wait."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from unhang.model import LogEvent, LogLine
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_MOST_LINES, _MOST_CHARS, _MOST_RANKS = 4000, 200, 4096
_SHARE = 3  # at most a third as many ranks are missing as wait: else the log may be of a part of the job
_COUNT = lazy_pattern(r"(?<![\d.:/-])(\d{1,9}) ?(?:/|of|out of) ?(\d{1,9})(?![\d:/-])")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_OF_LIBRARIES = lazy_pattern(r"\bNCCL (?:INFO|WARN)\b|ProcessGroup|c10d|TCPStore|[Ww]atchdog|torch/distributed")
_WORDS = "batches|samples|files|shards|examples|iterations|steps|sequences|rows|documents|items|images|records|chunks|episodes"
_AMOUNT = lazy_pattern(
    rf"(?<![\d.:-])(\d{{1,12}})(?= ?(?:\w+ )?(?:{_WORDS})\b)|\b(?:{_WORDS})(?: per (?:epoch|rank))?[ :=]{{1,3}}(\d{{1,12}})(?![\d.])"
)
_OWN = lazy_pattern(r"\b[Rr](?:ank)?[ _:=#-]?(\d{1,5})\b")


def silent_ranks(s: Situation) -> tuple[int, ...]:
    """The few ranks that did not wait where all others of a world of known size waited in one call until their limit.

    Nothing where the waits are in several calls, or where the log may be that of one rank or of one node alone.
    """
    waits, waited, world = s.watchdogs.timed_out, set(s.watchdogs.ranks), s.case.job.world_size
    if not world or world > _MOST_RANKS or not waited or max(waited) >= world or s.watchdogs.has_subgroups:
        return ()
    if len({(x.op, x.seq, x.numel_in) for x in waits if x.op}) != 1:
        return ()
    silent = set(range(world)) - waited
    if not silent or silent & set(s.watchdogs.seen) or (len(silent) > 1 and _SHARE * len(silent) > len(waited)):
        return ()
    if len(waited) > 1 or silent <= {*(line.rank for line in s.case.log), *s.case.ranks}:
        return tuple(sorted(silent))
    said = (_OWN.search(line.text[:_MOST_CHARS]) for line in s.case.log[:_MOST_LINES])
    return tuple(sorted(silent)) if silent <= {int(own[1]) for own in said if own} else ()


Known = tuple[tuple[int, ...], str, Sequence[LogEvent]]


def missing_by_lines(s: Situation) -> Known | None:
    """(ranks that were missing or behind, how that is known, the lines), by what libraries say of their own ranks."""
    return _not_come(s) or _horovod(s) or _shorter_queue(s) or _only_observer(s)


def _not_come(s: Situation) -> Known | None:
    """The ranks that had completed all that they had issued, and had not issued the call in which all others waited."""
    seqs, waited = {x.seq for x in s.watchdogs.timed_out}, set(s.watchdogs.ranks)
    seq = next(iter(seqs)) if len(seqs) == 1 else None
    others = [c for c in s.watchdogs.counters if c.rank not in waited]
    if seq is None or len(waited) < 2 or not others or s.watchdogs.has_subgroups:
        return None
    if any(c.enqueued >= seq or c.completed not in (None, c.enqueued) for c in others):
        return None
    return tuple(sorted(c.rank for c in others)), "had not issued that call", [c.event for c in others]


def _numbers(text: str) -> set[int]:
    return {int(n) for n in text.split(",") if n.strip().isdecimal()}


def _horovod(s: Situation) -> Known | None:
    if lines := s.events.of("horovod.missing"):
        common = set.intersection(*(_numbers(e["missing"]) for e in lines))
        return (tuple(sorted(common)), "did not submit it", lines) if common else None
    lists = s.events.of("horovod.missing_for")
    listed = {n for e in lists if (n := e.number("rank_")) is not None}
    if 0 < len(listed) <= 2:
        return tuple(sorted(listed)), "did not submit it", lists
    lines = s.events.of("horovod.ready")
    ready = [_numbers(e["ready"]) for e in lines]
    if not ready or any(r != ready[0] for r in ready):
        return None
    absent = set(range(max(ready[0], default=0) + 1)) - ready[0]
    return (tuple(sorted(absent)), "had not submitted it", lines) if absent else None


def _shorter_queue(s: Situation) -> Known | None:
    """The heartbeat monitors tell how many works each rank has under way: the one with fewer has issued fewer."""
    stuck = [(e.rank, e.number("queued"), e) for e in s.events.of("watchdog.stuck")]
    queued = {rank: (n, e) for rank, n, e in stuck if rank is not None and n is not None}
    most = max((n for n, _ in queued.values()), default=0)
    fewer = sorted(rank for rank, (n, _) in queued.items() if n < most)
    if len(queued) < 3 or not fewer or len(fewer) * 2 >= len(queued):
        return None
    return tuple(fewer), "had issued fewer calls", [queued[r][1] for r in fewer]


def _only_observer(s: Situation) -> Known | None:
    """The one rank that heard of the others' waits and had none itself: it came to their call later than all, or never."""
    waited, late = s.watchdogs.ranks, s.watchdogs.only_observed
    if len(late) != 1 or len(waited) < 2 or s.case.job.world_size not in (None, len(waited) + 1):
        return None
    lines = [e for e in s.events.of("watchdog.observed") if e.rank in late]
    return late, "heard of it from the others and had no wait of its own that ran out", lines


def counts_on(s: Situation) -> LogEvent | None:
    """The last line of a count (`eval 200/2086`) before somebody's limit, which is printed on, higher, after that limit by none who waited.

    Whoever prints it is at work, and does not wait with the others. The event that is returned has the kind of a bar.
    """
    first = s.watchdogs.first
    if first is None or not s.watchdogs.ranks:
        return None
    before: dict[str, tuple[int, int, LogLine]] = {}
    log, waited = s.case.log, set(s.watchdogs.ranks)
    for at in range(max(0, first.order - _MOST_LINES), min(len(log), first.order + _MOST_LINES)):
        line = log[at]
        if line.rank in waited or not (count := _COUNT.search(line.text[:_MOST_CHARS])):
            continue
        if at == first.order or _OF_LIBRARIES.search(line.text):
            continue
        done, total = int(count[1]), int(count[2])
        words = f"{_NUMBER.sub('#', line.text[: count.start()])}/{total}"
        if at < first.order:
            before[words] = done, at, line
        elif words in before and before[words][0] < done <= total:
            _, place, seen = before[words]
            fields = {"done": count[1], "total": count[2]}
            return LogEvent("progress.bar", seen.text, seen.source, place, seen.rank, seen.host, seen.time_ns, fields)
    return None


class Amount(NamedTuple):
    """How much data a rank said that it has. `line`: where."""

    rank: int
    amount: int
    line: LogLine


def uneven_amounts(s: Situation) -> Sequence[Amount]:
    """What each rank said of how much it has (`31 files`), in one line that is the same for all but for that number; nothing where all are equal.

    The first such line of each rank counts, and at least two ranks have to say it, all of the world where that is known.
    """
    said: dict[str, dict[int, Amount]] = {}
    first = s.watchdogs.first
    for line in s.case.log[: min(first.order if first else _MOST_LINES, _MOST_LINES)]:
        text = line.text[:_MOST_CHARS]
        amount = _AMOUNT.search(text)
        if amount is None or _OF_LIBRARIES.search(text):
            continue
        own = _OWN.search(text)
        rank = line.rank if line.rank is not None else int(own[1]) if own else None
        if rank is not None:
            bare = text[: amount.start()] + text[amount.end() :]
            words = _NUMBER.sub("#", bare)
            said.setdefault(words, {}).setdefault(rank, Amount(rank, int(amount[1] or amount[2]), line))
    for amounts in said.values():
        world = s.case.job.world_size or len(amounts)
        if len(amounts) == world > 1 and len({a.amount for a in amounts.values()}) > 1:
            return [amounts[r] for r in sorted(amounts)]
    return ()
