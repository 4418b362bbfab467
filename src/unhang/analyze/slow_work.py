"""Ranks that are slow or late without a fault of their own calls: more work than the others, a call after their limit, more threads than cores."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from unhang.analyze.by_kind import Events
from unhang.analyze.failures import is_timeout
from unhang.analyze.lines.own_lines import OwnLine, by_rank, own_lines
from unhang.analyze.program.callpath import Path, is_same_function, user_path
from unhang.analyze.program.sides import view_of
from unhang.analyze.program.source import Condition, function_at, surroundings
from unhang.analyze.program.trees import inside, last_name
from unhang.analyze.situation import Situation
from unhang.model import Case, CollectiveCall, Frame, LogEvent, grouped
from unhang.model.lazy_pattern import lazy_pattern

_COUNT = lazy_pattern(r"(?<![\w./:-])(\d{1,9})/(\d{1,9})(?![\w./:-])")
_NO_LETTERS = lazy_pattern(r"[^A-Za-z]+")
_LEAST_COUNTS, _FOR_A_PACE, _SLOWER, _MOST_CHARS = 2, 5, 1.3, 300


class Count(NamedTuple):
    """How far a rank had come: `done` of `total`, by this line."""

    done: int
    total: int
    line: OwnLine


class SlowWork(NamedTuple):
    """`slow`: the last count of each rank that was still at it; `finished`: the last line on it of each that was done. `times`: how much longer a part took, if known."""

    slow: Mapping[int, Count]
    finished: Mapping[int, OwnLine]
    times: float | None


def slower_at_work(s: Situation, waited: Iterable[int], before: int) -> SlowWork | None:
    """The latest work that ranks which waited had done, and others still counted after that, up to the place `before`.

    All count to the same number, in lines that differ in numbers and bars only. Who waits has done its part where it counted to the end, or turned to
    something else. Nothing where the stamps tell that a part took all of them as long: then one began later.
    """
    waits = set(waited)
    ranks = by_rank(x for x in own_lines(s) if x.order < before)
    counts = ((rank, c) for rank, lines in ranks.items() for line in lines if (c := _counted(line)) is not None)
    works = grouped(((_NO_LETTERS.sub(" ", c.line.words.partition("%|")[0]), c.total), (r, c)) for r, c in counts)
    found = [x for work in works.values() if (x := _unfinished(grouped(work), ranks, waits)) is not None]
    return max(found, key=lambda x: max(c.line.order for c in x.slow.values()), default=None)


def _counted(line: OwnLine) -> Count | None:
    match = _COUNT.search(line.line.text[:_MOST_CHARS])
    return Count(int(match[1]), int(match[2]), line) if match and int(match[1]) <= int(match[2]) else None


def _unfinished(
    works: Mapping[int, Sequence[Count]], ranks: Mapping[int, Sequence[OwnLine]], waits: set[int]
) -> SlowWork | None:
    counts = {r: c for r, c in works.items() if len(c) >= _LEAST_COUNTS and c[0].done < c[-1].done}
    slow = {r: c[-1] for r, c in counts.items() if r not in waits and c[-1].done < c[-1].total}
    done = {r: c[-1].line for r, c in works.items() if c[-1].done == c[-1].total}
    done |= {r: last for r in waits & works.keys() - done.keys() if (last := ranks[r][-1]) is not works[r][-1].line}
    is_told = not waits or bool(waits & done.keys())
    if not slow or not done or not is_told or waits & works.keys() - done.keys():
        return None
    if max(c.line.order for c in slow.values()) < min(x.order for x in done.values()):
        return None
    paces = {r: _pace(c) for r, c in counts.items()}
    usual, least = max(paces.get(r, 0.0) for r in done), min(paces[r] for r in slow)
    if not usual or not least:
        return SlowWork(slow, done, None)
    return SlowWork(slow, done, least / usual) if least >= _SLOWER * usual else None


def _pace(counts: Sequence[Count]) -> float:
    """Nanoseconds that one part takes, as a rule; 0 where too few lines tell."""
    stamps = [(c.done, c.line.line.time_ns) for c in counts]
    took = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(stamps) if n > m and a is not None and b is not None]
    return median(took) if len(stamps) >= _FOR_A_PACE and took else 0.0


_LEAST_SHARE = 0.5
_SAYS = ("print", "log", "info", "debug", "warning", "len", "str", "format")


class TooLate(NamedTuple):
    """`ranks` made `call`, which the `waiting` had made `waited_s` before and given up. `work`: the line of theirs alone before it, under `condition`."""

    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    call: CollectiveCall
    waited_s: float
    work: Frame | None
    condition: Condition | None


def too_late(s: Situation) -> TooLate | None:
    """Of a call that all members have made in the end, on one host: the fewer ranks that came behind the limit of the others."""
    errors = {r: e.error for r, e in s.case.ranks.items() if e.error is not None and is_timeout(e.error)}
    if not errors or s.divergence is not None or len({e.identity.host for e in s.case.ranks.values()}) > 1:
        return None
    gave_up = min(error.time_ns for error in errors.values())
    for stuck in s.stuck:
        calls = stuck.calls
        late = tuple(sorted(r for r, c in calls.items() if c.created_ns > gave_up))
        waiting = tuple(sorted(r for r in calls if r not in late))
        is_of_all = not (stuck.missing or stuck.is_mismatch) and errors.keys() <= {*waiting}
        if not is_of_all or not 0 < len(late) < len(waiting):
            continue
        waited_s = (gave_up - max(calls[r].created_ns for r in waiting)) / 1e9
        limit_ms = calls[waiting[0]].timeout_ms or 0
        if limit_ms and waited_s > _LEAST_SHARE * limit_ms / 1000:
            work = _alone_before(s.case, calls[late[0]], late)
            return TooLate(late, waiting, calls[late[0]], waited_s, *(work or (None, None)))
    return None


def _alone_before(case: Case, call: CollectiveCall, ranks: tuple[int, ...]) -> tuple[Frame, Condition] | None:
    """The first call in a block that these ranks alone enter, between their call before and this one."""
    here, before = user_path(call.frames), _path_before(case, call)
    for depth, frame in enumerate(here):
        last = before[depth] if before[:depth] == here[:depth] and len(before) > depth else None
        since = last.line if last is not None and is_same_function(last, frame) else 0
        function = function_at(frame.file, frame.line) if since != frame.line else None
        for block in sorted(inside(function, ast.If), key=lambda n: n.lineno):
            first = block.body[0].lineno
            is_between = since < first < frame.line if since < frame.line else not frame.line <= first <= since
            found = _of_these(case, frame.file, first, ranks) if is_between else None
            if found is not None:
                return Frame(frame.file, _first_call(block) or first, frame.function), found
        if since != frame.line:
            return None
    return None


def _path_before(case: Case, call: CollectiveCall) -> Path:
    rows = case.calls.rank_rows(call.rank)
    return user_path(case.calls.call(call.row - 1).frames) if call.row > rows.start else ()


def _of_these(case: Case, path: str, line: int, ranks: tuple[int, ...]) -> Condition | None:
    """The condition on the rank around a line that these pass and no other does."""
    for c in surroundings(path, line).conditions:
        passes = {r: c.on(view_of(case, r)).passes for r in case.world} if c.depends_on_rank else {}
        if passes and all((p is not False) is (r in ranks) for r, p in passes.items()):
            return c
    return None


def _first_call(block: ast.If) -> int:
    calls = (c for s in block.body for c in inside(s, ast.Call))
    return min((c.lineno for c in calls if last_name(c.func) not in _SAYS), default=0)


_CROWDED = 3  # a little above 1 is a busy machine


class Crowd(NamedTuple):
    """The threads that wanted to run over the last minute, and the cores that they share."""

    load: float
    cores: int
    events: Sequence[LogEvent]


def crowded(events: Events) -> Crowd | None:
    """The last load of a machine whose cores are told, in a job that makes steps."""
    cores = {e.host: e for e in events.of("pace.cores")}
    loads = {e.host: e for e in events.of("pace.load")}
    for host, load in loads.items() if events.has("progress.step", "progress.bar") else ():
        own = cores.get(host)
        count = (own.number("cores") or 0) if own is not None else 0
        if own is not None and count and float(load["load"]) > _CROWDED * count:
            return Crowd(float(load["load"]), count, (own, load))
    return None


_LEAST_BARS, _LONG_STEP_S = 3, 20.0
_FORCED = {"NCCL_IB_DISABLE": ("1", "2"), "NCCL_NET": ("Socket", "socket"), "NCCL_NET_PLUGIN": ("none",)}


class OverSockets(NamedTuple):
    """What keeps NCCL off the fast network, and how long a step takes; `setting`: the variable that forbids it, if one does; `told`: the line that calls it slow."""

    why: LogEvent
    way: LogEvent
    told: LogEvent
    setting: str
    step_s: float


def over_sockets(events: Events) -> OverSockets | None:
    """Traffic between nodes that goes through TCP alone as its fast plugin failed, no adapter is there, or a variable forbids it; in a job of slow steps.

    Slow by the program's own comparison; or, where the plugin failed, by bars whose last steps took twenty seconds and more.
    """
    between = events.of("nccl.channel_net")
    if not between or any(e["network"] != "Socket" for e in between):
        return None
    told = events.of("pace.told_slow")
    if refused := events.of("nccl.plugin_failed"):
        bars = [(e, _step_s(e)) for e in events.of("progress.bar") if e["rate"]][-_LEAST_BARS:]
        is_long = len(bars) == _LEAST_BARS and all(seconds >= _LONG_STEP_S for _, seconds in bars)
        if told or is_long:
            slow, seconds = (told[-1], 0.0) if told else bars[-1]
            return OverSockets(refused[0], between[0], slow, "", seconds)
    if (absent := events.of("nccl.no_adapter")) and told:
        return OverSockets(absent[0], between[0], told[-1], "", 0.0)
    forced = (e for e in events.of("environment.nccl_set") if e["value"] in _FORCED.get(e["name"], ()))
    setting = next(forced, None) if told else None
    return OverSockets(setting, between[0], told[-1], setting["name"], 0.0) if setting is not None else None


def _step_s(bar: LogEvent) -> float:
    rate = float(bar["rate"])
    return rate if bar["unit"] == "s/it" else 1 / rate if rate else 0.0
