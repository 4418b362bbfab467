"""Phases of steps that each rank times for itself: who takes long for one of its own, and is waited for by the others in another one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from unhang.analyze.own_lines import OwnLine, by_rank, own_lines
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
