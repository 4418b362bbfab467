"""Ranks that all told the same up to their last line, and there began different pieces of work, before all of them waited in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.analyze.lines.own_lines import before_the_wait, by_rank
from unhang.analyze.lines.told_apart import Apart
from unhang.model import grouped

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

_LEAST_RANKS, _LEAST_BEFORE, _TWO = 3, 2, 2


def began_another_work(s: Situation) -> Apart | None:
    """The fewer ranks whose last line is another one than that of the others, with neither said by the other side; of two halves nobody.

    All ranks wait in the call of the same number, so that nobody is late, and all that each told before is in words that all told, as often.
    Rank 0 may tell of more.
    """
    places = {(x.op, x.seq) for x in s.watchdogs.timed_out}
    waited = set(s.watchdogs.ranks)
    of_ranks = by_rank(before_the_wait(s))
    world = s.case.job.world_size or len(of_ranks)
    if len(places) != 1 or len(waited) < max(_LEAST_RANKS, world) or of_ranks.keys() != waited:
        return None
    said = {r: [x.words for x in lines] for r, lines in of_ranks.items()}
    common = set.intersection(*(set(words) for words in said.values()))
    sides = grouped((words[-1], r) for r, words in said.items())
    if len(sides) != _TWO or common & sides.keys() or not _came_the_same_way(said, common):
        return None
    few, many = sorted(sides.values(), key=len)
    lines = [of_ranks[r][-1] for r in (*few[:_TWO], *many[:_TWO])]
    return Apart(tuple(sorted(few)) if len(few) < len(many) else (), lines)


def _came_the_same_way(said: Mapping[int, Sequence[str]], common: set[str]) -> bool:
    """Whether the ranks told the same, in the same order, up to their last line."""
    ways = {r: [x for x in words[:-1] if x in common] for r, words in said.items()}
    same = next(iter(ways.values()))
    has_more = any(len(ways[r]) < len(words) - 1 for r, words in said.items() if r)
    return len(same) >= _LEAST_BEFORE and all(way == same for way in ways.values()) and not has_more
