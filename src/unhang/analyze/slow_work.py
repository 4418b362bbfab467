"""Work that each rank counts for itself in the log, and the one rank that is far slower at it than the others."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from unhang.model import LogLine
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_COUNT = lazy_pattern(r"(?<![\w./-])(\d{1,9})/(\d{1,9})(?![\w./-])")
_NUMBERS = lazy_pattern(r"\d+")
_LEAST_COUNTS, _MUCH_SLOWER = 5, 2.0


class SlowWork(NamedTuple):
    """Work that each rank counts for itself, which the others had done when one of them was still at it. `times`: how much longer a part took it."""

    rank: int
    done: int
    total: int
    times: float
    last: LogLine
    finished: tuple[tuple[int, LogLine], ...]


def slower_at_work(s: Situation, before: int) -> SlowWork | None:
    """The one rank that still counted when somebody's wait ran out at the place `before`, at half the pace of all others or less.

    All of them count the same work to the same number, by lines that differ in numbers only.
    """
    works: dict[tuple[str, int], dict[int, list[tuple[int, LogLine]]]] = {}
    for line in s.case.log[:before]:
        if line.rank is not None and (match := _COUNT.search(line.text)) and line.time_ns is not None:
            work = _NUMBERS.sub("#", line.text)[:120], int(match[2])
            works.setdefault(work, {}).setdefault(line.rank, []).append((int(match[1]), line))
    for (_, total), ranks in works.items():
        behind = [r for r, counts in ranks.items() if counts[-1][0] < total]
        finished = tuple((r, counts[-1][1]) for r, counts in ranks.items() if counts[-1][0] == total)
        if len(behind) != 1 or not finished or min(map(len, ranks.values())) < _LEAST_COUNTS:
            continue
        paces = {r: _pace(counts) for r, counts in ranks.items()}
        usual = max(pace for r, pace in paces.items() if r != behind[0])
        if usual > 0 and paces[behind[0]] >= _MUCH_SLOWER * usual:
            done, last = ranks[behind[0]][-1]
            return SlowWork(behind[0], done, total, paces[behind[0]] / usual, last, finished)
    return None


def _pace(counts: list[tuple[int, LogLine]]) -> float:
    """Nanoseconds that one part takes, as a rule."""
    took = [((b.time_ns or 0) - (a.time_ns or 0)) / (n - m) for (m, a), (n, b) in pairwise(counts) if n > m]
    return median(took) if took else 0.0
