"""Who does not take part in a call in which others waited until their limit, by what a log prints beside and behind the wait."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.lines.log_progress import OF_ALL
from unhang.analyze.lines.own_lines import OF_LIBRARIES, OwnLine, own_lines, stamp_of
from unhang.model import LogEvent, LogLine, grouped
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_MOST_LINES, _MOST_CHARS, _MOST_RANKS = 4000, 200, 4096
_MOST_NAME = 40
_SHARE = 3  # at most a third as many ranks are missing as wait: else the log may be of a part of the job
_COUNT = lazy_pattern(r"(?<![\d.:/-])(\d{1,9}) ?(?:/|of|out of) ?(\d{1,9})(?![\d:/-])")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_NAME = re.compile("[A-Za-z]{3}")
_SLACK_NS, _LONG_NS, _USUAL = 5_000_000_000, 120_000_000_000, 3
# What tells of an end, of the training itself, or of something that goes on beside it.
_NO_TURN = lazy_pattern(
    r"\b(?:finish\w*|done|complet\w*|saved|ended|took|elapsed|success\w*|loaded|epochs?|train\w*|steps?|iter\w*|batch\w*|resum\w*|warn\w*"
    r"|error|deprecated|loss|lr)\b|[=:] ?#",
    re.IGNORECASE,
)
# What is printed by who does nothing, or beside the work.
_STANDS = lazy_pattern(
    r"heartbeat|health|alive|utili[sz]ation|wait|GET /|POST /|throughput|No available shared memory|retry|memory",
    re.IGNORECASE,
)
_EVALUATES = lazy_pattern(
    r"\b(?:eval\w*|val(?:id\w*)?|test\w*|dev)\b", re.IGNORECASE
)  # its loss is no step of training
_WORDS = (
    "batches|samples|files|shards|examples|iterations|steps|sequences|rows|documents|docs|items|images|records|chunks|episodes|entries"
    "|tokens|frames|clips|windows|graphs|pairs|prompts|utterances|points|indices|blocks"
)
_DATA = r"(?:data|dataset|loader|dataloader|sampler|split|shard|partition|subset|train(?:_set|_data|_loader|ing set)?)"
# `31 batches`, `batches: 31`, `31 local train batches`; `len(train_loader) = 31`, `dataset size: 31`, `steps_per_epoch=31`, `num_rows 31`.
_AMOUNT = lazy_pattern(
    rf"(?<![\d.:-])(\d{{1,12}})(?= (?:[A-Za-z-]+ ){{0,2}}(?:{_WORDS})\b)|(?<![\d.:-])(\d{{1,12}})(?=(?:{_WORDS})\b)"
    rf"|\b(?:num_|n_|total_|local_)?(?:{_WORDS})(?:[ _](?:per|in|of|on|for)[ _](?:\w+[ _])?\w+)?[ :=]{{1,3}}(\d{{1,12}})(?![\d.])"
    rf"|\b(?:len|length|size|count)\(?(?: of)? ?(?:self\.)?(?:the )?(?:\w+[_ .])?{_DATA}\w*\)?[ :=]{{1,3}}(\d{{1,12}})(?![\d.])"
    rf"|\b(?:\w+[_ ])?{_DATA}(?:[ _.]?(?:len|length|size|count))[ :=]{{1,3}}(\d{{1,12}})(?![\d.])"
)
_OWN = lazy_pattern(r"\b[Rr](?:ank)?[ _:=#-]?(\d{1,5})\b")
# What a compiler keeps is no data of the training.
_OF_A_COMPILER = lazy_pattern(
    r"inductor|triton|ccache|compil\w*|kernels?\b|autotun\w*|\bjit\b|torch_?extensions|neff|\bxla\b|aot_?autograd",
    re.IGNORECASE,
)


def silent_ranks(s: Situation) -> tuple[int, ...]:
    """The few ranks that did not wait where all others waited in one call until their limit.

    Nothing where the waits are in several calls, or where the log may be that of one rank or of one node alone. In a world of
    unknown size it is the one number that lacks among those that waited, if the log has other lines of it.
    """
    waits, waited = s.watchdogs.timed_out, set(s.watchdogs.ranks)
    if not waited:
        return ()
    world = s.case.job.world_size or max(waited) + 1
    if world > _MOST_RANKS or max(waited) >= world or s.watchdogs.has_subgroups:
        return ()
    if len({(x.op, x.seq, x.numel_in) for x in waits if x.op}) != 1:
        return ()
    silent = set(range(world)) - waited
    if not silent or silent & may_wait(s) or (len(silent) > 1 and _SHARE * len(silent) > len(waited)):
        return ()
    has_lines = silent <= {*(line.rank for line in s.case.log), *(e.rank for e in s.events), *s.case.ranks}
    if not s.case.job.world_size:
        return tuple(silent) if has_lines and len(silent) == 1 and len(waited) > 2 else ()
    if len(waited) > 1 or has_lines:
        return tuple(sorted(silent))
    said = (_OWN.search(line.text[:_MOST_CHARS]) for line in s.case.log[:_MOST_LINES])
    return tuple(sorted(silent)) if silent <= {int(own[1]) for own in said if own} else ()


Known = tuple[tuple[int, ...], str, Sequence[LogEvent]]


def missing_by_lines(s: Situation) -> Known | None:
    """(ranks that were missing or behind, how that is known, the lines), by what libraries say of their own ranks."""
    return _not_come(s) or _horovod(s) or _shorter_queue(s) or _only_observer(s)


def not_come(s: Situation) -> tuple[int, set[int]]:
    """By how many calls, and which ranks had completed all that they had issued, and had not issued the call of those that waited."""
    seqs = {x.seq for x in s.watchdogs.timed_out}
    seq = seqs.pop() if len(seqs) == 1 else None
    others = [c for c in s.watchdogs.counters if c.rank not in s.watchdogs.ranks]
    if seq is None or not others or s.watchdogs.has_subgroups:
        return 0, set()
    if any(c.enqueued >= seq or c.completed not in (None, c.enqueued) for c in others):
        return 0, set()
    return seq - max(c.enqueued for c in others), {c.rank for c in others}


def may_wait(s: Situation) -> set[int]:
    """The ranks of whose own calls the watchdogs tell, but for those that had not come to the call in which the others waited."""
    return set(s.watchdogs.seen) - not_come(s)[1]


def _not_come(s: Situation) -> Known | None:
    _, late = not_come(s) if len(s.watchdogs.ranks) > 1 else (0, set())
    lines = [c.event for c in s.watchdogs.counters if c.rank in late]
    return (tuple(sorted(late)), "had not issued that call", lines) if late else None


def _numbers(text: str) -> set[int]:
    return {int(n) for n in text.split(",") if n.strip().isdecimal()}


def _horovod(s: Situation) -> Known | None:
    if lines := s.events.of("horovod.missing"):
        common = set.intersection(*(_numbers(e["missing"]) for e in lines))
        return (tuple(sorted(common)), "did not submit its part", lines) if common else None
    lists = s.events.of("horovod.missing_for")
    listed = {n for e in lists if (n := e.number("rank_")) is not None}
    if 0 < len(listed) <= 2:
        return tuple(sorted(listed)), "did not submit its part", lists
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


def who_waited(s: Situation) -> set[int]:
    """The ranks whose wait ran out; where Horovod tells only which one rank is missing, the others that print anything."""
    waited = set(s.watchdogs.ranks)
    missing = _horovod(s) if s.watchdogs.first is not None and not waited else None
    if missing is not None and len(missing[0]) == 1:
        return {x.rank for x in own_lines(s) if x.rank is not None}.difference(missing[0])
    return waited


def works_on(s: Situation) -> LogEvent | None:
    """The last line of the one rank that printed on while the others waited, or behind their limit, as before with other numbers.

    Whoever prints it is at work. A line without a rank is of the one rank that does not wait; else rank 0's where it
    counts on to a total. The event that is returned has the kind of a bar. None where several ranks print on.
    """
    first, waited = s.watchdogs.first, who_waited(s)
    if first is None or not waited:
        return None
    theirs, wait = {_words(x) for x in own_lines(s) if x.rank in waited}, may_wait(s)
    steps = {e.order for e in s.events.of("progress.step", "learn.") if not _EVALUATES.search(e.text[:_MOST_CHARS])}
    said: dict[tuple[int | None, str], list[OwnLine]] = {}
    for x in own_lines(s):
        is_own = x.rank not in waited and x.rank not in wait and _words(x) not in theirs
        if is_own and x.order not in steps and not _STANDS.search(x.words):
            said.setdefault((x.rank, _words(x)), []).append(x)
    alone = set(range(s.case.job.world_size or 0)) - waited
    unnamed = min(alone) if len(alone) == 1 else 0
    found = {
        unnamed if rank is None else rank: last
        for (rank, _), lines in said.items()
        if (last := _last_of_work(s, first, rank, lines))
    }
    if len(found) != 1:
        return None
    ((rank, last),) = found.items()
    count = _COUNT.search(last.line.text[:_MOST_CHARS])
    fields = {"done": count[1], "total": count[2]} if count else {}
    line = last.line
    return LogEvent("progress.bar", line.text, line.source, last.order, rank, line.host, line.time_ns, fields)


def _words(line: OwnLine) -> str:
    """Without what a bar draws, and the name of the item behind a count that stands in its line's first words."""
    words = line.words.partition("%|")[0]
    told, count, _ = words.partition("#/#")
    return told + count if count else words


def _last_of_work(s: Situation, first: LogEvent, rank: int | None, lines: Sequence[OwnLine]) -> OwnLine | None:
    """The last of some lines with the same words before the limit, if they go on during the wait or behind it."""
    since, until = _wait_began(s, first), first.time_ns or 0
    before, behind = ([x for x in lines if (x.order < first.order) is is_before] for is_before in (True, False))
    during = [x for x in before if since is not None and since < (x.line.time_ns or 0) <= until]
    world, is_behind = s.case.job.world_size, not_come(s)[1] == {0}
    is_known = is_behind or (world is not None and s.watchdogs.all_but_0_of(world))
    is_told = rank is not None or is_known or any(_counts_to(before[-1], x) for x in behind if before)
    goes_on = _differ(during) or (before and behind and _differ([before[-1], *behind])) or _is_amid(s, before)
    return before[-1] if is_told and goes_on else None


def turned_to(s: Situation) -> LogEvent | None:
    """What rank 0 said last, in a job that trained, where all others of a world of known size wait, and it was no step and nothing that ended."""
    first, world = s.watchdogs.first, s.case.job.world_size
    if first is None or world is None or not s.watchdogs.all_but_0_of(world) or 0 in may_wait(s):
        return None
    said = [x for x in own_lines(s) if x.order < first.order and x.rank in (0, None)]
    moves = {e.order for e in s.events if e.is_progress or e.kind == "progress.unbounded"}
    usual = Counter(x.words for x in said)
    most = max(usual.values(), default=0)
    last, since = said[-1] if said else None, _wait_began(s, first)
    is_begun = last is not None and _ended_before(said)
    if last is None or last.order in moves or (not is_begun and (most < _USUAL or 2 * usual[last.words] > most)):
        return None
    stamp = stamp_of(s, last)
    is_old = since is not None and stamp is not None and stamp < since - _LONG_NS
    if _STANDS.search(last.words) or (not is_begun and (is_old or _NO_TURN.search(last.words))):
        return None
    line = last.line
    return LogEvent("work.other", line.text, line.source, last.order, 0, line.host, line.time_ns)


def _ended_before(said: Sequence[OwnLine]) -> bool:
    """Whether the last line has always been answered by one other line before, which no other line was: work that was told to begin and to end."""
    last = said[-1].words
    answers = {b.words for a, b in pairwise(said) if a.words == last}
    return (
        len(answers) == 1
        and last not in answers
        and all(a.words == last for a, b in pairwise(said) if b.words in answers)
    )


def _wait_began(s: Situation, first: LogEvent) -> int | None:
    """When the first wait that ran out had clearly begun, by its length and the stamp of its line."""
    lengths = [x.ran_ms or x.limit_ms or 0 for x in s.watchdogs.timed_out]
    if first.time_ns is None or not any(lengths):
        return None
    length_ns = min(n for n in lengths if n) * 1_000_000
    return first.time_ns - length_ns + max(length_ns // 20, _SLACK_NS)


def _is_amid(s: Situation, lines: Sequence[OwnLine]) -> bool:
    """Whether they count up to a total that they have not come to, in words of their own, and did not stop before the wait began."""
    last = _COUNT.search(lines[-1].line.text[:_MOST_CHARS]) if len(lines) > 1 else None
    if last is None or last[1] == last[2] or not _counts_to(lines[-2], lines[-1]):
        return False
    name = lines[-1].words.partition("#/#")[0][-_MOST_NAME:]
    since = _wait_began(s, s.watchdogs.first) if s.watchdogs.first else None
    has_stopped = since is not None and (stamp_of(s, lines[-1]) or since) < since
    return not has_stopped and bool(_NAME.search(name)) and not OF_ALL.search(name)


def _counts_to(before: OwnLine, behind: OwnLine) -> bool:
    was, now = (_COUNT.search(x.line.text[:_MOST_CHARS]) for x in (before, behind))
    return bool(was and now and was[2] == now[2] and int(was[1]) < int(now[1]) <= int(now[2]))


def _differ(lines: Sequence[OwnLine]) -> bool:
    return len(lines) > 1 and lines[0].values != lines[-1].values


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
        if amount is None or OF_LIBRARIES.search(text) or _OF_A_COMPILER.search(text):
            continue
        own = _OWN.search(text)
        rank = line.rank if line.rank is not None else int(own[1]) if own else None
        if rank is not None:
            bare = text[: amount.start()] + text[amount.end() :]
            words = _NUMBER.sub("#", bare)
            said.setdefault(words, {}).setdefault(rank, Amount(rank, int(next(filter(None, amount.groups()))), line))
    for amounts in said.values():
        world = s.case.job.world_size or len(amounts)
        if len(amounts) == world > 1 and len({a.amount for a in amounts.values()}) > 1:
            return [amounts[r] for r in sorted(amounts)]
    return ()


def bars_of_unlike_length(s: Situation) -> Sequence[LogEvent]:
    """The last bar of each total, where ranks draw bars of one name that go on in step and count to unlike totals, and one came to its end; else nothing.

    A bar of an evaluation inside of a training's, or one behind the other, do not count the same numbers side by side.
    """
    first = s.watchdogs.first
    prepares = {e.order for e in s.events.of("work.preparing")}  # of shards that need not be alike
    bars = [e for e in s.events.of("progress.bar") if first is not None and e.order < first.order]
    bars = [e for e in bars if e.order not in prepares and e["total"].isdecimal()]
    named = grouped((e.text.partition("%|")[0].rstrip("0123456789 "), e) for e in bars[-_MOST_LINES:])
    for of_name in named.values():
        beside: dict[frozenset[str], set[str]] = {}
        for a, b in pairwise(of_name):
            if a["done"] == b["done"] and a["total"] != b["total"]:
                beside.setdefault(frozenset((a["total"], b["total"])), set()).add(a["done"])
        totals = frozenset().union(*(pair for pair, done in beside.items() if len(done) >= _USUAL))
        last = {e["total"]: e for e in of_name if e["total"] in totals}
        if len(last) > 1 and any(e["done"] == e["total"] for e in last.values()):
            return [last[total] for total in sorted(last, key=int)]
    return ()
