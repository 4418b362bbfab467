"""What a test of a group of members can answer, how far an answer can be trusted, and answers made of measured times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

Group = tuple[int, ...]
Pair = tuple[int, int]

CERTAIN = 1e-12
"""The least probability that an answer is wrong: contradictions stay finite."""
MIN_PEERS = 8
"""Fewer groups of one size in a round give no yardstick."""
OUTLIER_DEVIATIONS = 6.0
MAD_TO_DEVIATION = 1.4826


class Answer(StrEnum):
    """What a group did. `HUNG` did not end and counts as bad; `MISSING` says nothing: not run, or not to be judged."""

    OK = "ok"
    BAD = "bad"
    HUNG = "hung"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class GroupTest:
    """One test that was run; rounds count from 1."""

    round: int
    group: Group
    answer: Answer


@dataclass(frozen=True, slots=True)
class Noise:
    """How often one test answers wrongly.

    `false_alarm`: bad, though nothing in the group is. `miss`: ok, though something is. A fault that shows in every second
    test is a `miss` of 0.5.

    Raises:
        ValueError: no probabilities, or an answer would say nothing.
    """

    false_alarm: float = 0.01
    miss: float = 0.01

    def __post_init__(self) -> None:
        if not (self.false_alarm >= 0 and self.miss >= 0 and self.false_alarm + self.miss < 1):
            raise ValueError("false_alarm and miss are probabilities, and less than 1 together")

    @property
    def bad_weight(self) -> float:
        """Logarithm of how much more probable a bad answer is with a fault than without."""
        return math.log((1 - self.miss) / max(self.false_alarm, CERTAIN))

    @property
    def ok_weight(self) -> float:
        """The same of an ok answer: negative."""
        return math.log(max(self.miss, CERTAIN) / (1 - self.false_alarm))


def answers_from_times(
    groups: Sequence[Group],
    times_s: Sequence[float | None],
    known_s: Mapping[int, float] | None = None,
    times_slower: float = 1.5,
) -> tuple[Answer, ...]:
    """Answers of one round from how long each group took; None stands for a group that did not end.

    A group is bad if it took `times_slower` as long as the median of the groups of its size, and more than six deviations
    (by the median absolute deviation) longer. Fewer than eight groups of a size are judged by `known_s`, what a good group of
    that size takes, or not at all. More than half of them bad would pass for good: `Search(with_controls=True)` prevents it.
    For a bandwidth give bytes by bandwidth.
    """
    known = known_s or {}
    answers = [Answer.HUNG if t is None else Answer.MISSING for t in times_s]
    for size in {len(g) for g in groups}:
        at = [i for i, (g, t) in enumerate(zip(groups, times_s, strict=True)) if len(g) == size and t is not None]
        limit_s = _limit_s([t for i in at if (t := times_s[i]) is not None], known.get(size), times_slower)
        for i in at if limit_s is not None else ():
            answers[i] = Answer.BAD if (times_s[i] or 0.0) > (limit_s or 0.0) else Answer.OK
    return tuple(answers)


def _limit_s(times_s: Sequence[float], known_s: float | None, times_slower: float) -> float | None:
    """From which time on a group of these is bad; None if nothing tells."""
    if len(times_s) < MIN_PEERS:
        return None if known_s is None else times_slower * known_s
    median_s = float(np.median(times_s))
    deviation_s = MAD_TO_DEVIATION * float(np.median(np.abs(np.array(times_s) - median_s)))
    return max(times_slower * median_s, median_s + OUTLIER_DEVIATIONS * deviation_s)
