"""What a log holds of measurements of the steps: the table of torch's profiler, and the same work at two paces in two runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.lines.log_progress import bar_name, drawn_bars, elapsed_s
from unhang.model import LogEvent, LogLine
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_TOTAL = lazy_pattern(r"^\W{0,4}Self (?:CUDA|XPU|device) time total: (\d+\.\d+) ?(us|ms|s)\b")
_KERNEL = lazy_pattern(r"^\W{0,4}\s*((?:nccl|oneccl)(?:Dev)?Kernel\w{0,60}|ncclKernel\w{0,60})")
_HEAD = lazy_pattern(r"\bName\b.*# of Calls")
_TIME = lazy_pattern(r"(?<![\w.])(\d+\.\d+)(us|ms|s)\b")
_IN_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST_ROWS, _MOST_SHARE, _LEAST_S = 400, 0.6, 0.2


class Profiled(NamedTuple):
    """How much of the time of the device is in kernels of collectives, in seconds; the rows that say so, and the sum of all."""

    in_calls_s: float
    of_s: float
    rows: Sequence[LogLine]


def mostly_in_collectives(s: Situation) -> Profiled | None:
    """The last table of the profiler, where most of the time of the device is in collectives, and that is no short look."""
    log = s.case.log
    ends = [(i, m) for i, x in enumerate(log) if (m := _TOTAL.search(x.text[:200]))]
    if not ends:
        return None
    at, total = ends[-1]
    rows = list(_kernels(log[max(0, at - _MOST_ROWS) : at]))
    took, of = sum(seconds for seconds, _ in rows), float(total[1]) * _IN_S[total[2]]
    if of < _LEAST_S or not _MOST_SHARE * of <= took <= of:
        return None
    rows.sort(key=lambda row: -row[0])
    return Profiled(took, of, [*(x for _, x in rows[:2]), log[at]])


def _kernels(lines: Sequence[LogLine]) -> Iterator[tuple[float, LogLine]]:
    """The rows of a table on kernels of collectives, each with its time on the device: a kernel takes none of the processor."""
    begin = max((i for i, x in enumerate(lines) if _HEAD.search(x.text)), default=0)
    for line in lines[begin:]:
        times = [float(n) * _IN_S[unit] for n, unit in _TIME.findall(line.text)] if _KERNEL.search(line.text) else []
        if times:
            yield max(times), line


_BEGINS = lazy_pattern(
    r"^\^C|^\+{1,3} \S|^(?:\([\w.-]+\) ?)?(?:\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80})?[$#>] \S|KeyboardInterrupt"
)
_LONG_STEP_S, _MANY_TIMES, _LEAST_DONE, _LEAST_TOTAL = 20.0, 10, 5, 20


class UnlikePaces(NamedTuple):
    """Seconds of a step in the slow run, and in the quick one, with the last drawing of the bar of each."""

    slow_s: float
    quick_s: float
    events: tuple[LogEvent, LogEvent]


def unlike_paces(s: Situation) -> UnlikePaces | None:
    """Two runs of as many steps, with a new command or Ctrl-C between them: one takes ten times as long for each step, and never came to its end."""
    runs = [bar for bar in drawn_bars(s.events) if _per_step(bar[-1])]
    for one, other in combinations(runs, 2):
        slow, quick = sorted((one[-1], other[-1]), key=_per_step, reverse=True)
        is_same = (bar_name(slow), slow["total"]) == (bar_name(quick), quick["total"])
        if not is_same or slow["done"] == slow["total"] or (slow.number("total") or 0) < _LEAST_TOTAL:
            continue
        slow_s, quick_s = _per_step(slow), _per_step(quick)
        first, later = sorted((one, other), key=lambda bar: bar[0].order)
        between = s.case.log[first[-1].order + 1 : later[0].order]
        is_anew = any(_BEGINS.search(x.text[:200]) for x in between)
        if is_anew and slow_s >= max(_LONG_STEP_S, _MANY_TIMES * quick_s):
            return UnlikePaces(slow_s, quick_s, (slow, quick))
    return None


def _per_step(bar: LogEvent) -> float:
    """Seconds of a step, by the whole time of a bar; 0 where it has counted too few."""
    done, took = bar.number("done") or 0, elapsed_s(bar) or 0
    return took / done if done >= _LEAST_DONE else 0.0
