"""How a job went along by its own output: what it was doing when the waits began, how fast it made its steps, and who printed no line for the last."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.by_kind import Events
from unhang.analyze.failures import Failure
from unhang.model import LogEvent, LogLine
from unhang.model.evidence import SEEN_BY_LAUNCHER
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_LOADING = lazy_pattern(r"Loading|Downloading|Fetching|shards", re.IGNORECASE)
DEFAULT_LIMIT_S = 600
_CLEARLY, _ALMOST, _HALF = 4, 0.9, 0.5
_TERMINATED = -15
_LAST_LINES = 3
_NO_STEPS, _LEAST_NAME = 10**8, 4
_FEW_LEFT, _MANY = 3, 20
# Loops in which all ranks take part, though one of them may draw the bar.
OF_ALL = lazy_pattern(
    r"\b(?:epochs?|train(?:ing)?|steps?|iter\w*|batch\w*|valid\w*|evaluat\w*|testing|generat\w*|roll-?outs?|sampling|captur\w*|compil\w*"
    r"|warm\w*|infer\w*|loss\w*|predict\w*|processed prompts)\b",
    re.IGNORECASE,
)
_BYTES = lazy_pattern(r", *[\d.]+ ?[kMGT]?i?B/s\]")


def work_before_the_wait(events: Events) -> LogEvent | None:
    """The work of one rank (preparing data, saving, evaluating) that was the last thing told before somebody waited too long.

    None where training went on after it, or where the work is told to be done.
    """
    waited = _waited(events)
    works = [e for e in events.of("work.preparing", "work.saving", "work.evaluating") if not _is_done(e)]
    works = [e for e in works if waited is None or e.order <= waited]
    if not works:
        return None
    last = works[-1]
    done = {"work.saving": "work.saved", "work.preparing": "work.prepared"}.get(last.kind)
    ends = ("ending.destroying", done) if done else ("ending.destroying",)
    if any(last.order < e.order < (waited or e.order + 1) for e in events.of(*ends)):
        return None
    return None if _trains_after(events, last, waited) else last


def bar_beside_the_wait(events: Events, limit_s: int, position: int | None) -> LogEvent | None:
    """An unfinished bar that had run for as long as the limit of the wait, and counts no steps of training.

    Training makes at least one collective per step: a bar that counted to more than `position`, the number of the collective in
    which the others wait, counts something that one rank does without them. So does one that counts bytes, and one that goes
    on when the others have waited for so long. None where it shows a loss: that is training.
    """
    waited = _waited(events)
    bars = [e for e in events.of("progress.bar") if waited is not None and e.order <= waited]
    if not bars or _is_done(bars[-1]):
        return None
    last = bars[-1]
    if any(e.order == last.order for e in events.of("learn.")):
        return None
    done, ran_s = last.number("done"), elapsed_s(last)
    if ran_s is None or ran_s < _ALMOST * limit_s:
        return None
    counts_more = done is not None and position is not None and done > _CLEARLY * position
    later = [e for e in events.of("progress.bar") if e.order > last.order and e["total"] == last["total"] != ""]
    goes_on = done is not None and any((e.number("done") or 0) > done for e in later)
    counts_bytes = bool(_BYTES.search(last.text)) or (last.number("total") or 0) >= _NO_STEPS
    is_foreign = goes_on or (not _LOADING.search(last.text) and (counts_more or counts_bytes))
    return last if is_foreign else None


def preparing_bar(events: Events, limit_s: int) -> LogEvent | None:
    """An unfinished bar with a name of its own as the last one before the first wait that ran out, in a job that had not trained yet.

    None where several ranks draw it, where its name is that of a loop in which all take part, and where it had neither run for half of
    the limit, nor was to run for longer than that. The line on the wait may stand behind it, on the same line.
    """
    waited = _waited(events)
    is_bar = "progress.bar"
    before = [e for e in events if waited is not None and e.order < waited + (e.kind == is_bar)]
    bars = [e for e in before if e.kind == is_bar]
    if not bars or _is_done(bars[-1]) or any(e.kind in ("progress.step", "progress.unbounded") for e in before):
        return None
    last, names = bars[-1], [bar_name(e) for e in bars]
    counts = [e.number("done") or 0 for e, name in zip(bars, names, strict=True) if name == names[-1]]
    is_alone = all(a <= b for a, b in pairwise(counts))
    ran_s = elapsed_s(last)
    if ran_s is not None and ran_s < _HALF * limit_s and (_seconds(last["left"]) or 0) < limit_s:
        return None
    is_of_all = any(OF_ALL.search(name) or not name.strip() for name in names) or _LOADING.search(last.text)
    return last if is_alone and not is_of_all and sum(c.isalpha() for c in names[-1]) >= _LEAST_NAME else None


def is_training_last(events: Events) -> bool:
    """Whether a training step is the last thing told before the wait."""
    waited = _waited(events)
    shown = [e for e in events.of("progress.step", "progress.unbounded", "work.") if waited is None or e.order < waited]
    return bool(shown) and shown[-1].kind.startswith("progress.")


def is_near_its_end(events: Events) -> bool:
    """Whether the last bar before the wait had a few steps left of many."""
    bars = [e for e in events.of("progress.bar") if e.order <= (_waited(events) or 0)]
    done, total = (bars[-1].number("done"), bars[-1].number("total")) if bars else (None, None)
    return done is not None and total is not None and 0 < total - done <= _FEW_LEFT and total >= _MANY


def printed_last(lines: Sequence[LogLine], before: int) -> int | None:
    """The rank that printed the last lines before a place, if other ranks had printed lines as well, but none of these."""
    told = [line.rank for line in lines[:before] if line.rank is not None and line.text.strip()]
    last = set(told[-_LAST_LINES:])
    others = set(told) - last
    return next(iter(last)) if len(last) == 1 and len(told) > _LAST_LINES and len(others) > 1 else None


def trained_on_after(events: Events, event: LogEvent) -> bool:
    """Whether steps of training were told after a line and before anybody had waited too long."""
    waited = _waited(events)
    after = [e for e in events.of("progress.step", "progress.bar") if e.order > event.order]
    return any(waited is None or e.order < waited for e in after)


def bar_name(event: LogEvent) -> str:
    """What stands before the percentage of a progress bar."""
    return event.text.partition("%|")[0].rstrip("0123456789 ")


def elapsed_s(event: LogEvent) -> int | None:
    """Seconds that a progress bar has run."""
    return _seconds(event["elapsed"])


def _seconds(time: str) -> int | None:
    """Of `1:02:03` or `10:01`."""
    parts = time.split(":")
    if not all(p.isdecimal() and len(p) < 6 for p in parts):
        return None
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return seconds


def failed_by_itself(failures: Sequence[Failure]) -> Failure | None:
    """The first failure that is no echo, and that is not a rank which the launcher told to end because others had failed."""
    own = [f for f in failures if not f.secondary]
    if len(failures) < 2:
        return next(iter(own), None)
    return next((f for f in own if not _was_asked_to_end(f)), None)


def _was_asked_to_end(failure: Failure) -> bool:
    end = failure.exit
    return failure.kind == "signal" and end is not None and end.code == _TERMINATED and end.text == SEEN_BY_LAUNCHER


def _waited(events: Events) -> int | None:
    return next((e.order for e in events if e.says == "hang"), None)


def _is_done(event: LogEvent) -> bool:
    return bool(event["total"]) and event["done"] == event["total"]


def _drawn(bar: LogEvent) -> tuple[str, str, str]:
    """What is the same of a bar that is only drawn again: its name, which may hold the epoch, and its numbers."""
    return bar.text.partition("|")[0].rstrip("0123456789% "), bar["total"], bar["done"]


def _trains_after(events: Events, work: LogEvent, waited: int | None) -> bool:
    """Whether steps were told between the work and the wait. A bar that is only drawn again is no step."""
    bars = [e for e in events.of("progress.bar") if not _LOADING.search(e.text)]
    before = {_drawn(e) for e in bars if e.order <= work.order}
    after = [e for e in (*events.of("progress.step"), *bars) if e.order > work.order]
    return any(
        (waited is None or e.order < waited) and not (e.kind == "progress.bar" and (_is_done(e) or _drawn(e) in before))
        for e in after
    )


_STEP = lazy_pattern(r"\b(?:global[_ ])?(?:step|iter(?:ation)?|batch|update)s?[ :=#\[(]*(\d{1,9})\b", re.IGNORECASE)
_WHO = lazy_pattern(r"\bcuda:(\d{1,3})\b|\b(?:global[_ ])?rank[ _:=#\]\[]*(\d{1,6})\b", re.IGNORECASE)


class Behind(NamedTuple):
    """A rank whose last step is older than everybody else's. `words` reads before "before the exception"."""

    rank: int
    words: str
    events: tuple[LogEvent, ...]


def behind_in_steps(s: Situation, before: int | None = None) -> Behind | None:
    """The one rank that printed no line for the last step of all others.

    None where the lines name fewer than two ranks, or where more than one lags: lines of one step come in any order, so the
    last step is judged only if every rank but one has printed it.
    """
    last: dict[int, tuple[int, LogEvent]] = {}
    for event in s.events.of("progress.step"):
        if before is not None and event.order > before:
            break
        step, who = _STEP.search(event.text), _WHO.search(event.text)
        rank = int(who[1] or who[2]) if who else event.rank
        if step and rank is not None:
            last[rank] = int(step[1]), event
    newest = max((step for step, _ in last.values()), default=0)
    late = [rank for rank, (step, _) in last.items() if step < newest]
    if len(last) < 3 or len(late) != 1:
        return None
    last_step, event = last[late[0]]
    others = [e for rank, (_, e) in sorted(last.items()) if rank != late[0]]
    words = f"Rank {late[0]} came to step {last_step}, all others to step {newest},"
    return Behind(late[0], words, (event, *others[:3]))


_SMOOTHING = 0.3  # tqdm's default: the weight of the newest step in the rate that its bar shows
_LEAST_STEPS = 20
_STALL_S, _STALL_RATIO = 60, 20.0
_FEW, _BEFORE = 5, 10
_SLOWER, _SLOW_STEP_S = 5.0, 1.0
_WAITS_SHARE = 0.7
_SLOW_START = 10.0


@dataclass(frozen=True, slots=True)
class Stall:
    """One wait between two steps that are fast otherwise. `wait_s`, `usual_s`: seconds; `is_reckoned`: from a smoothed rate."""

    wait_s: float
    usual_s: float
    events: tuple[LogEvent, ...]
    is_reckoned: bool = False


@dataclass(frozen=True, slots=True)
class Slower:
    """Steps that take longer to the end of the log than they did before; seconds per step."""

    before_s: float
    after_s: float
    events: tuple[LogEvent, ...]


@dataclass(frozen=True, slots=True)
class Starved:
    """Steps that wait for their data for most of their time; seconds per step."""

    data_s: float
    step_s: float
    events: tuple[LogEvent, ...]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """From one drawing of a bar to the next."""

    steps: int
    took_s: int
    event: LogEvent

    @property
    def step_s(self) -> float:
        return self.took_s / self.steps


def stall(events: Events) -> Stall | None:
    """The longest stall that the bars of a log show: between two of its drawings, or in the rate that the last one shows.

    A bar's rate is a moving average in which the newest step has a weight of 0.3: `800 s/it` after thousands of steps of 0.4 s is
    one wait of about 2,700 s, and no step takes 800 s.
    """
    found = [x for bar in drawn_bars(events) for x in (_between(_stretches(bar)), _in_the_rate(bar)) if x is not None]
    return max(found, key=lambda x: (not x.is_reckoned, x.wait_s), default=None)


def slower(events: Events) -> Slower | None:
    """The steps of the last bar, where the last stretches were all slow and those before them were not."""
    for bar in reversed(drawn_bars(events)):
        stretches = _stretches(bar)[1:]  # the first has the warm-up in it
        before, last = stretches[:-_FEW], stretches[-_FEW:]
        if len(before) >= _BEFORE and len(last) == _FEW:
            usual_s, least_s = median(x.step_s for x in before), min(x.step_s for x in last)
            if least_s >= _SLOW_STEP_S and least_s >= _SLOWER * usual_s:
                return Slower(usual_s, median(x.step_s for x in last), (before[-1].event, *(x.event for x in last)))
    return None


def starved(events: Events) -> Starved | None:
    """The last steps that print how long they took and how long their data let them wait, if that is most of it."""
    told = ((e, _real(e["data"]), _real(e["step"])) for e in events.of("pace.split"))
    last = [x for x in told if x[1] and x[2]][1:][-2 * _FEW :]
    if len(last) < _FEW or any(data < _WAITS_SHARE * whole or data > whole for _, data, whole in last):
        return None
    step_s = median(whole for *_, whole in last)
    if step_s < _SLOW_STEP_S:
        return None
    return Starved(median(data for _, data, _ in last), step_s, tuple(e for e, *_ in last))


@dataclass(frozen=True, slots=True)
class SlowStarts:
    """First steps of passes over the data that wait long for their first batch. Seconds: of each, until its batch was there; `usual_s` later lines."""

    step_s: tuple[float, ...]
    data_s: tuple[float, ...]
    usual_s: float
    events: tuple[LogEvent, ...]

    def text(self) -> str:
        """What was seen, as a sentence without an end."""
        step, data = (_span(x) for x in (self.step_s, self.data_s))
        return (
            f"the first step of each pass over the data took {step} s, of which {data} s were over before its batch was there; later lines tell {self.usual_s:.3g} s: "
            "that is the start of the loader and its workers (spawn pickles the dataset into each)"
        )


def slow_starts(events: Events) -> SlowStarts | None:
    """First steps of a minute and more, of which most went by before the first batch came; a first step that compiles is none."""
    lines = [(e, e.number("index"), _real(e["step"]) or 0.0, _real(e["data"]) or 0.0) for e in events.of("pace.at")]
    firsts = [x for x in lines if x[1] == 0]
    later = [step for _, index, step, _ in lines if index]
    if not firsts or len(later) < _FEW:
        return None
    usual_s = median(later)
    slow = [x for x in firsts if x[2] >= max(_STALL_S, _SLOW_START * usual_s) and x[3] >= _WAITS_SHARE * x[2]]
    if 2 * len(slow) <= len(firsts):
        return None
    return SlowStarts(tuple(x[2] for x in slow), tuple(x[3] for x in slow), usual_s, tuple(x[0] for x in slow))


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def drawn_bars(events: Events) -> list[list[LogEvent]]:
    """The drawings of each bar that tells its time, in order; a bar that begins again is another one."""
    bars: dict[tuple[int | None, str, str], list[list[LogEvent]]] = {}
    for event in events.of("progress.bar"):
        done = event.number("done")
        if done is None or elapsed_s(event) is None:
            continue
        drawn = bars.setdefault((event.rank, event["total"], bar_name(event)[-60:]), [[]])
        if drawn[-1] and (drawn[-1][-1].number("done") or 0) > done:
            drawn.append([])
        drawn[-1].append(event)
    return [bar for drawn in bars.values() for bar in drawn]


def _stretches(bar: Sequence[LogEvent]) -> list[_Stretch]:
    at = [(e.number("done") or 0, elapsed_s(e) or 0, e) for e in bar]
    return [_Stretch(b[0] - a[0], b[1] - a[1], b[2]) for a, b in pairwise(at) if b[0] > a[0] and b[1] >= a[1]]


def _between(stretches: Sequence[_Stretch]) -> Stall | None:
    longest = max(stretches, key=lambda x: x.took_s, default=None)
    if longest is None or longest.took_s < _STALL_S:
        return None
    others = [x for x in stretches if x is not longest]
    steps = sum(x.steps for x in others)
    usual_s = _per_step(others)
    if steps < _LEAST_STEPS or longest.took_s < _STALL_RATIO * max(usual_s, 0.01) * longest.steps:
        return None
    return Stall(longest.took_s - usual_s * (longest.steps - 1), usual_s, (longest.event,))


def _per_step(stretches: Iterable[_Stretch]) -> float:
    known = list(stretches)
    return sum(x.took_s for x in known) / max(1, sum(x.steps for x in known))


def _in_the_rate(bar: Sequence[LogEvent]) -> Stall | None:
    """What the moving average of the last drawing comes from, where the mean of all steps is far below it."""
    last = bar[-1]
    rate_s, done, ran_s = _real(last["rate"]), last.number("done") or 0, elapsed_s(last) or 0
    if last["unit"] != "s/it" or not rate_s or done < _LEAST_STEPS:
        return None
    wait_s = rate_s / _SMOOTHING
    if not _STALL_S <= wait_s <= ran_s or rate_s * done < _STALL_RATIO * ran_s:
        return None
    return Stall(wait_s, (ran_s - wait_s) / done, (last,), is_reckoned=True)


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
