"""Does a change help? The before must show the failure, with its cause; the after must not, and must come as far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from unhang.model import Finding
from unhang.model.rank_sets import name_ranks
from unhang.numeric import np
from unhang.verify.expectations import Expectation
from unhang.verify.judging import WARM_UP_STEPS, Check, exit_code_of, failed, of_all_runs, passed, skipped
from unhang.verify.runs import Run

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


SURE = 0.95
MOST_RUNS = 100
_TIMES_AS_LONG = 19.0  # SURE / (1 - SURE): how much longer than the one failure that is known, see `unhang diagnose`


def enough(before: Sequence[Run], after: Sequence[Run]) -> str:
    """Why no more runs are needed: one failed, or that so many passed is no luck (95 %); "" where more are needed."""
    share, passes = Side("before", tuple(before)).failures, Side("after", tuple(after)).failures
    if passes.count:
        return "a run failed"
    if share.total > 1:
        luck = chance_of_luck(share, passes)
        return (
            f"by luck so many would pass with chance {100 * luck:.0f} %"
            if luck is not None and luck <= 1 - SURE
            else ""
        )
    failed_s = [s for run in before if run.has_failed and (s := _failed_after_s(run))]
    lasted_s = sum(run.seconds or 0.0 for run in after)
    if failed_s and lasted_s >= _TIMES_AS_LONG * failed_s[0]:
        return f"{lasted_s:.0f} s without a failure, which had come after {failed_s[0]:.0f} s: {100 * SURE:.0f} % sure"
    return "" if failed_s or len(after) < MOST_RUNS else f"{len(after)} runs, and it is not known when the failure came"


def _failed_after_s(run: Run) -> float | None:
    """Seconds from the start of the job until ranks waited, or until it ended."""
    hang = run.diagnosis.hang
    return hang.onset_s if hang is not None and hang.onset_s else run.seconds


@dataclass(frozen=True)
class Side:
    """The runs before a change, or after it."""

    name: str
    runs: tuple[Run, ...]

    @property
    def failures(self) -> Share:
        """How many of them failed."""
        return Share(sum(run.has_failed for run in self.runs), len(self.runs))

    @property
    def step_times(self) -> list[list[float]]:
        """Seconds of the steps of each run, without the first ones."""
        return [[s for step, s in run.durations.items() if step > WARM_UP_STEPS] for run in self.runs]

    @property
    def spread(self) -> Spread | None:
        """Of the steps of all runs."""
        return Spread.of([seconds for run in self.step_times for seconds in run])

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that were found, those of the first run first."""
        return tuple(dict.fromkeys(run.cause for run in self.runs if run.cause))


@dataclass(frozen=True)
class Verified:
    """What came out. `before` has no runs where only the expectations were asked."""

    before: Side
    after: Side
    checks: tuple[Check, ...]
    ratio: Ratio | None = None
    luck: float | None = None

    @property
    def exit_code(self) -> int:
        """0 as expected, 1 not, 3 could not judge."""
        return exit_code_of(self.checks)


def compare_sides(
    before: Sequence[Run], after: Sequence[Run], expectations: Sequence[Expectation], seed: int = 0
) -> Verified:
    """Puts all questions: to the before, to the after by each expectation, and to both."""
    sides = Side("before", tuple(before)), Side("after", tuple(after))
    own = (_before_fails(sides[0]), _cause_is_gone(*sides), _comes_as_far(*sides)) if before else ()
    asked = [of_all_runs([expectation.judge(run) for run in after]) for expectation in expectations]
    return Verified(
        *sides,
        checks=(*own, *asked),
        ratio=ratio_of_medians(sides[0].step_times, sides[1].step_times, seed),
        luck=chance_of_luck(sides[0].failures, sides[1].failures),
    )


def where(finding: Finding) -> str:
    """The ranks and the line that a finding names."""
    named = name_ranks(finding.culprit_ranks) if finding.culprit_ranks else ""
    return " at ".join(part for part in (named, str(finding.location) if finding.location else "") if part)


def _before_fails(before: Side) -> Check:
    name = "before_fails"
    failing = [run for run in before.runs if run.has_failed]
    if not failing:
        return failed(
            name, f"no failure in {len(before.runs)} runs before the change, so the runs after it prove nothing"
        )
    with_cause = next((run for run in failing if run.findings), None)
    if with_cause is None:
        reason = f"the run before failed ({failing[0]}), but no cause is established"
        return replace(skipped(name, reason), is_own=True)
    finding = with_cause.findings[0]
    return passed(name, f"{with_cause.diagnosis.outcome.value}: {finding.cause}, {where(finding) or finding.title}")


def _cause_is_gone(before: Side, after: Side) -> Check:
    name = "cause_is_gone"
    if not before.causes:
        return skipped(name, "the run before has no established cause")
    for number, run in enumerate(after.runs, 1):
        if same := [f for f in run.findings if f.cause in before.causes]:
            which = f"run {number}: " if len(after.runs) > 1 else ""
            return failed(name, f"{which}{same[0].cause} is still there: {same[0].title}")
    return passed(name, f"no {' or '.join(before.causes)} in {len(after.runs)} run{'s' * (len(after.runs) > 1)}")


def _comes_as_far(before: Side, after: Side) -> Check:
    """A run with fewer ranks, or one that stops before the place of the failure, proves nothing."""
    name = "comes_as_far"
    failing = [run for run in before.runs if run.has_failed]
    ranks = [max((len(run.case.world) for run in failing), default=0), min(len(run.case.world) for run in after.runs)]
    if ranks[0] and not ranks[1]:
        return replace(
            skipped(name, f"nothing shows that the run after had ranks; the run before had {ranks[0]}"), is_own=True
        )
    if ranks[1] < ranks[0]:
        return failed(name, f"the run after had {ranks[1]} rank{'s' * (ranks[1] != 1)}, the run before {ranks[0]}")
    reached = [run.steps for run in failing if run.steps is not None]
    far = [run.steps for run in after.runs if run.steps is not None]
    if not reached or len(far) < len(after.runs):
        return replace(skipped(name, "steps are not known of all runs"), is_own=max(reached, default=0) > 0)
    furthest, least = max(reached), min(far)
    if least < furthest:
        return failed(name, f"the run after ended at step {least}, and the run before failed only at step {furthest}")
    if not least:
        return skipped(name, "no optimizer of torch made a step, so that steps cannot be counted")
    return passed(name, f"the run before failed at step {furthest}, the run after reached step {least}")
