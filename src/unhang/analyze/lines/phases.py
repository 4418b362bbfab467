"""Phases that each rank times for itself, and passes over the data: who takes long for one, and who is done with one where the others are not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.lines.log_progress import is_near_its_end
from unhang.analyze.lines.logged_calls import BUCKET_ELEMENTS, TimedOut
from unhang.analyze.lines.own_lines import OwnLine, before_the_wait, by_rank, by_words, own_lines
from unhang.model import grouped
from unhang.model.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from unhang.analyze.situation import Situation

# `input_wait  208.4 ms`, `bwd=0.31s`, `data_time: 0.208`: a name, and a time with its unit, or a name that says that it is one.
_PHASE = lazy_pattern(
    r"(?P<name>[A-Za-z][\w/-]{1,30}(?: [a-z][\w/-]{1,20})?)(?:\((?P<bare>m?s)\))?[ ]{0,2}[:=]?[ ]{0,8}(?P<value>\d{1,7}(?:\.\d{1,6})?) ?(?P<unit>ms|us|s|sec|seconds?)?(?![\w./])"
)
_IS_TIME = lazy_pattern(r"time|wait|_ms$|_s$|_sec$", re.IGNORECASE)
_MOST_LINES = 4000
_SCALE = {"us": 1e-6, "ms": 1e-3}
_STAGES = lazy_pattern(r"\bpipeline|\bpp[ _]?(?:rank|size|stage)", re.IGNORECASE)  # ranks with unlike work by design
# Not a part of the step: since the beginning, until the end, or of all phases.
_NO_PHASE = lazy_pattern(
    r"elapsed|eta|remain|total|uptime|since|ago|timeout|limit|step|iter|batch|epoch|rank|loss", re.IGNORECASE
)
_LEAST_ROUNDS, _LEAST_NUMBERS, _MOSTLY = 5, 2, 0.8
_LEAST_S, _LEAST_SHARE = 0.02, 0.2


class LateInAPhase(NamedTuple):
    """`rank` takes `own_s` for `phase` in the usual step, no other one more than `others_s`; the others are `longer_s` longer in `waiting`. Seconds."""

    rank: int
    phase: str
    own_s: float
    others_s: float
    waiting: str
    longer_s: float
    lines: Sequence[OwnLine]


_Times = Mapping[str, Mapping[int, Sequence[float]]]


def late_in_a_phase(s: Situation) -> LateInAPhase | None:
    """The one rank that is longest in a phase in nearly every step, by about as much as all others are longer in another phase."""
    if any(_STAGES.search(line.text) for line in s.case.log[:_MOST_LINES]):
        return None
    times, lines = _times(s)
    found = (_late(times, phase, waiting) for phase in times for waiting in times if phase != waiting)
    best = max((x for x in found if x is not None), key=lambda x: x.own_s - x.others_s, default=None)
    return best._replace(lines=[of[-1] for _, of in sorted(lines.items())]) if best is not None else None


def _times(s: Situation) -> tuple[_Times, Mapping[int, Sequence[OwnLine]]]:
    """Of each phase the times of each rank, round by round, from the words with most such lines; the first round warms up."""
    said = grouped((x.words, x) for x in own_lines(s) if x.rank is not None and len(x.values) >= _LEAST_NUMBERS)
    whole = [by_rank(lines) for lines in said.values()]
    told = max(whole, key=lambda of: min(map(len, of.values())) if len(of) > 1 else 0, default={})
    counts = [len(lines) for lines in told.values()]
    if len(told) < 2 or min(counts) <= _LEAST_ROUNDS or max(counts) > min(counts) + 1:
        return {}, {}
    found: dict[str, dict[int, list[float]]] = {}
    for rank, lines in told.items():
        for line in lines[1 : min(counts)]:
            for name, value in _phases(line.line.text):
                found.setdefault(name, {}).setdefault(rank, []).append(value)
    rounds = min(counts) - 1
    is_whole = {n: of for n, of in found.items() if len(of) == len(told) and {len(x) for x in of.values()} == {rounds}}
    return is_whole, told


def _phases(text: str) -> Iterator[tuple[str, float]]:
    for match in _PHASE.finditer(text):
        name, unit = match["name"].strip(), match["unit"] or match["bare"]
        if (unit or _IS_TIME.search(name)) and not _NO_PHASE.search(name):
            scale = _SCALE.get(unit or ("ms" if name.endswith("_ms") else "s"), 1.0)
            yield name, float(match["value"]) * scale


def _late(times: _Times, phase: str, waiting: str) -> LateInAPhase | None:
    usual = {rank: median(values) for rank, values in times[phase].items()}
    rank = max(usual, key=lambda r: usual[r])
    others = [r for r in usual if r != rank]
    others_s, waited = max(usual[r] for r in others), {r: median(v) for r, v in times[waiting].items()}
    more_s, longer_s = usual[rank] - others_s, min(waited[r] for r in others) - waited[rank]
    step_s = usual[rank] + waited[rank]
    if more_s < max(_LEAST_S, _LEAST_SHARE * step_s) or not 0.5 * more_s <= longer_s <= 1.5 * more_s:
        return None
    rounds = range(len(times[phase][rank]))
    mine = [
        all(
            times[phase][rank][i] > times[phase][r][i] and times[waiting][rank][i] < times[waiting][r][i]
            for r in others
        )
        for i in rounds
    ]
    if sum(mine) < _MOSTLY * len(mine):
        return None
    return LateInAPhase(rank, phase, usual[rank], others_s, waiting, longer_s, ())


ENDS_PASS = lazy_pattern(
    r"\b(?:validat\w+|evaluat\w+|end of (?:the )?epoch|epoch\b.{0,20}\b(?:end(?:ed|s)?|done|finished|completed?))\b",
    re.IGNORECASE,
)
_SMALL, _TWO, _LEAST_OF_PASS = 1024, 2, 4


def leaves_the_pass(s: Situation, odd: Sequence[TimedOut], others: Sequence[TimedOut]) -> bool:
    """Whether some ranks are done with their pass over the data where the others make one call of it: they say so, or few steps were left.

    Who gathers parameters as the others do, but of another module, is in the same pass. Rank 0 alone may do something of its own near the end.
    """
    if {x.op for x in odd} & {x.op for x in others if "GATHER" in x.op}:
        return False
    ranks, rest = ({x.rank for x in side if x.rank is not None} for side in (odd, others))
    if ends_pass(s, ranks) or _had_fewer_rounds(s, ranks, rest):
        return True
    is_small = all(0 < (x.numel_in or 0) <= _SMALL for x in odd) and {x.rank for x in odd} != {0}
    reduces = all("REDUCE" in x.op and (x.numel_in or 0) >= BUCKET_ELEMENTS for x in others)
    return is_small and reduces and is_near_its_end(s.events)


def ends_pass(s: Situation, wanted: Collection[int]) -> bool:
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
    if len(most) != 1 or not max(counts[r][rounds] for r in odd) < min(most) >= _LEAST_OF_PASS:
        return False
    behind = [x.words for x in _after_the_last(of_ranks[min(odd)], rounds)]
    return any(
        {counts[r][words] for r in others} == {counts[min(odd)][words] - 1} and counts[min(odd)][words] > _TWO
        for words in behind
    )


def _after_the_last(lines: Sequence[OwnLine], words: str) -> Sequence[OwnLine]:
    at = max((i for i, x in enumerate(lines) if x.words == words), default=len(lines))
    return lines[at + 1 :]
