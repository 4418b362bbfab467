"""Numbers of several runs: shares with intervals, medians with quartiles, and the ratio of two medians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959964
_RESAMPLES = 2000
_FEWEST_RUNS = 3  # with fewer, runs cannot be resampled, and steps stand in for them
_MOST_VALUES = 20_000


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total`, with the 95 % interval of Wilson."""

    count: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true share lies; (0, 1) if nothing was counted.

        Source: E. B. Wilson, "Probable inference", JASA 22 (1927).
        """
        if not self.total:
            return 0.0, 1.0
        n, p, z2 = self.total, self.count / self.total, Z_95**2
        middle = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.count} of {self.total} (95 %: {100 * low:.0f} to {100 * high:.0f} %)"


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of many steps. `count`: how many steps these figures rest on."""

    median_s: float
    lower_s: float
    upper_s: float
    largest_s: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """Median, quartiles and maximum; None without values."""
        if not seconds:
            return None
        lower, median, upper = (float(q) for q in np.quantile(np.asarray(seconds), (0.25, 0.5, 0.75)))
        return cls(median, lower, upper, max(seconds), len(seconds))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The after's median step time over the before's, with a 95 % bootstrap interval over runs, or over steps."""

    value: float
    low: float
    high: float
    over: str

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.2f} (95 %: {self.low:.2f} to {self.high:.2f}, resampled over {self.over})"


def ratio_of_medians(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], seed: int = 0
) -> Ratio | None:
    """Compares the steps of several runs; each inner sequence is one run. None where one side has no steps.

    Steps of one run hang together, so that whole runs are resampled where both sides have three of them.
    """
    runs = [[np.asarray(run[:_MOST_VALUES]) for run in side if len(run)] for side in (before, after)]
    if not all(runs):
        return None
    over_runs = min(map(len, runs)) >= _FEWEST_RUNS
    values = [np.array([np.median(run) for run in side]) if over_runs else np.concatenate(side) for side in runs]
    middles = [float(np.median(np.concatenate(side))) for side in runs]
    if not middles[0]:
        return None
    random = np.random.default_rng(seed)
    drawn = [np.median(random.choice(side, (_resamples(len(side)), len(side))), axis=1) for side in values]
    some = min(map(len, drawn))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanquantile(drawn[1][:some] / drawn[0][:some], (0.025, 0.975))
    return Ratio(middles[1] / middles[0], float(low), float(high), "runs" if over_runs else "steps")


def _resamples(count: int) -> int:
    """Fewer of long series, whose medians hardly differ."""
    return max(200, min(_RESAMPLES, 4_000_000 // max(1, count)))


def chance_of_luck(before: Share, after: Share) -> float | None:
    """How likely a job that fails as often as the before would pass as often as the after did; None if the after failed.

    The before's share is taken at the lower end of its interval: the doubt is for the fix. A single run before tells no share.
    """
    if after.count or not after.total or not before.count or before.total < 2:
        return None
    return float((1 - before.interval[0]) ** after.total)
