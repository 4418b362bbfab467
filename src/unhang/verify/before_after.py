"""Does a change help? The before must show the failure, with its cause; the after must not, and must come as far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unhang.model import Finding
from unhang.verify.checks import Check, exit_code, failed, of_all_runs, passed, skipped
from unhang.verify.compare_runs import Ratio, Share, Spread, chance_of_luck, ratio_of_medians
from unhang.verify.expectations import Expectation
from unhang.verify.judging import WARM_UP_STEPS
from unhang.verify.runs import Run


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
        return exit_code(self.checks)


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
    ranks = ", ".join(map(str, finding.culprit_ranks[:8])) + ("..." if len(finding.culprit_ranks) > 8 else "")
    named = f"rank{'s' * (len(finding.culprit_ranks) > 1)} {ranks}" if ranks else ""
    return " at ".join(part for part in (named, str(finding.location) if finding.location else "") if part)


def _before_fails(before: Side) -> Check:
    name = "before_fails"
    failing = [run for run in before.runs if run.has_failed]
    if not failing:
        return failed(name, f"the before shows no failure in {len(before.runs)} runs, so that the after proves nothing")
    with_cause = next((run for run in failing if run.findings), None)
    if with_cause is None:
        reason = f"the before failed ({failing[0]}), but no cause is established"
        return replace(skipped(name, reason), is_own=True)
    finding = with_cause.findings[0]
    return passed(name, f"{with_cause.diagnosis.outcome.value}: {finding.cause}, {where(finding) or finding.title}")


def _cause_is_gone(before: Side, after: Side) -> Check:
    name = "cause_is_gone"
    if not before.causes:
        return skipped(name, "the before has no established cause")
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
        return replace(skipped(name, f"nothing shows that the after had ranks; the before had {ranks[0]}"), is_own=True)
    if ranks[1] < ranks[0]:
        return failed(name, f"the after had {ranks[1]} rank{'s' * (ranks[1] != 1)}, the before {ranks[0]}")
    reached = [run.steps for run in failing if run.steps is not None]
    far = [run.steps for run in after.runs if run.steps is not None]
    if not reached or len(far) < len(after.runs):
        return replace(skipped(name, "steps are not known of all runs"), is_own=max(reached, default=0) > 0)
    furthest, least = max(reached), min(far)
    if least < furthest:
        return failed(name, f"the after ended at step {least}, the before failed at step {furthest} only")
    if not least:
        return skipped(name, "no optimizer of torch made a step, so that steps cannot be counted")
    return passed(name, f"the before failed at step {furthest}, the after came to step {least}")
