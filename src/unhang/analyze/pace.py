"""How fast a job made its steps, by what it printed: stalls, steps that became slower, and waits for the data loader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from unhang.analyze.event_index import Events
from unhang.analyze.log_activity import elapsed_s
from unhang.model import LogEvent

_SMOOTHING = 0.3  # tqdm's default: the weight of the newest step in the rate that its bar shows
_LEAST_STEPS = 20
_STALL_S, _STALL_RATIO = 60, 20.0
_FEW, _BEFORE = 5, 10
_SLOWER, _SLOW_STEP_S = 5.0, 1.0
_WAITS_SHARE = 0.7


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
    found = [x for bar in _bars(events) for x in (_between(_stretches(bar)), _in_the_rate(bar)) if x is not None]
    return max(found, key=lambda x: (not x.is_reckoned, x.wait_s), default=None)


def slower(events: Events) -> Slower | None:
    """The steps of the last bar, where the last stretches were all slow and those before them were not."""
    for bar in reversed(_bars(events)):
        stretches = _stretches(bar)[1:]  # the first has the warm-up in it
        before, last = stretches[:-_FEW], stretches[-_FEW:]
        if len(before) >= _BEFORE and len(last) == _FEW:
            usual_s, least_s = median(x.step_s for x in before), min(x.step_s for x in last)
            if least_s >= _SLOW_STEP_S and least_s >= _SLOWER * usual_s:
                return Slower(usual_s, median(x.step_s for x in last), (before[-1].event, *(x.event for x in last)))
    return None


def starved(events: Events) -> Starved | None:
    """The last steps that print how long they took and how long their data let them wait, if that is most of it."""
    known = [
        (e, data, whole) for e in events.of("pace.split") if (data := _real(e["data"])) and (whole := _real(e["step"]))
    ]
    last = known[1:][-2 * _FEW :]
    if len(last) < _FEW or any(data < _WAITS_SHARE * whole or data > whole for _, data, whole in last):
        return None
    step_s = median(whole for *_, whole in last)
    return (
        Starved(median(data for _, data, _ in last), step_s, tuple(e for e, *_ in last))
        if step_s >= _SLOW_STEP_S
        else None
    )


def _bars(events: Events) -> list[list[LogEvent]]:
    """The drawings of each bar that tells its time, in order; a bar that begins again is another one."""
    bars: dict[tuple[int | None, str, str], list[list[LogEvent]]] = {}
    for event in events.of("progress.bar"):
        done = event.number("done")
        if done is None or not event["elapsed"] or elapsed_s(event) is None:
            continue
        drawn = bars.setdefault(
            (event.rank, event["total"], event.text.partition("%|")[0].rstrip("0123456789 ")[-60:]), [[]]
        )
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
