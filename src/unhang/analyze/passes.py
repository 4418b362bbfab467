"""Passes over the data: which ranks are done with theirs where the others are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from unhang.analyze.log_progress import is_near_its_end
from unhang.analyze.logged_calls import BUCKET_ELEMENTS, TimedOut
from unhang.analyze.own_lines import OwnLine, before_the_wait, by_rank, by_words, own_lines
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

ENDS_PASS = lazy_pattern(
    r"\b(?:validat\w+|evaluat\w+|end of (?:the )?epoch|epoch\b.{0,20}\b(?:end(?:ed|s)?|done|finished|completed?))\b",
    re.IGNORECASE,
)
_SMALL, _TWO, _LEAST_ROUNDS = 1024, 2, 4


def leaves_the_pass(s: Situation, odd: Sequence[TimedOut], others: Sequence[TimedOut]) -> bool:
    """Whether some ranks are done with their pass over the data where the others make one call of it: they say so, or few steps were left.

    Who gathers parameters as the others do, but of another module, is in the same pass. Rank 0 alone may do something of its own near the end.
    """
    if {x.op for x in odd} & {x.op for x in others if "GATHER" in x.op}:
        return False
    ranks, rest = ({x.rank for x in side if x.rank is not None} for side in (odd, others))
    if _ends_pass(s, ranks) or _had_fewer_rounds(s, ranks, rest):
        return True
    is_small = all(0 < (x.numel_in or 0) <= _SMALL for x in odd) and {x.rank for x in odd} != {0}
    reduces = all("REDUCE" in x.op and (x.numel_in or 0) >= BUCKET_ELEMENTS for x in others)
    return is_small and reduces and is_near_its_end(s.events)


def _ends_pass(s: Situation, wanted: Collection[int]) -> bool:
    """Whether each of some ranks said last that its pass over the data ends or that it validates, in words that no other rank said.

    Last of all, or before its wait: behind that a rank may print its traceback.
    """
    return any(_said_last(by_rank(lines), wanted) for lines in (own_lines(s), before_the_wait(s)))


def _said_last(of_ranks: Mapping[int, Sequence[OwnLine]], wanted: Collection[int]) -> bool:
    said = by_words(of_ranks)
    last = [xs[-1].words for r in wanted if (xs := of_ranks.get(r))]
    return len(last) == len(wanted) and all(
        ENDS_PASS.search(words) and said[words].keys() <= set(wanted) for words in last
    )


def _had_fewer_rounds(s: Situation, odd: Collection[int], others: Collection[int]) -> bool:
    """Whether some ranks told fewer rounds than all others, and once more what every rank tells behind its rounds; the others told of a round last."""
    of_ranks = by_rank(before_the_wait(s))
    if not odd or not others or not of_ranks.keys() >= {*odd, *others}:
        return False
    counts = {r: Counter(x.words for x in of_ranks[r]) for r in (*odd, *others)}
    last = {of_ranks[r][-1].words for r in others}
    rounds = last.pop() if len(last) == 1 else ""
    most = {counts[r][rounds] for r in others}
    if len(most) != 1 or not max(counts[r][rounds] for r in odd) < min(most) >= _LEAST_ROUNDS:
        return False
    behind = [x.words for x in _after_the_last(of_ranks[min(odd)], rounds)]
    return any(
        {counts[r][words] for r in others} == {counts[min(odd)][words] - 1} and counts[min(odd)][words] > _TWO
        for words in behind
    )


def _after_the_last(lines: Sequence[OwnLine], words: str) -> Sequence[OwnLine]:
    at = max((i for i, x in enumerate(lines) if x.words == words), default=len(lines))
    return lines[at + 1 :]
