"""Work that each rank counts for itself in the log, and the ranks that were still at it when others, done with theirs, waited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.own_lines import OwnLine, by_rank, own_lines
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

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
    works: dict[tuple[str, int], dict[int, list[Count]]] = {}
    for rank, lines in ranks.items():
        for line in lines:
            if (count := _counted(line)) is not None:
                works.setdefault((_name(line), count.total), {}).setdefault(rank, []).append(count)
    found = [x for counts in works.values() if (x := _unfinished(counts, ranks, waits)) is not None]
    return max(found, key=lambda x: max(c.line.order for c in x.slow.values()), default=None)


def _counted(line: OwnLine) -> Count | None:
    match = _COUNT.search(line.line.text[:_MOST_CHARS])
    return Count(int(match[1]), int(match[2]), line) if match and int(match[1]) <= int(match[2]) else None


def _name(line: OwnLine) -> str:
    return _NO_LETTERS.sub(" ", line.words.partition("%|")[0])


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
