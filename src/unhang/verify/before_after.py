"""Does a change help? The before must show the failure, with its cause; the after must not, and must come as far. As text, JSON, JUnit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unhang.model import Finding, Verdict
from unhang.model.findings import name_ranks
from unhang.show.paper import columns, duration, printable
from unhang.show.preflight import JUnitCase, junit
from unhang.verify import Check, Run, exit_code_of, failed, of_all_runs, passed, skipped
from unhang.verify.expectations import WARM_UP_STEPS, Expectation
from unhang.verify.step_times import Ratio, Spread, ratio_of_medians

Z_95 = 1.959964
SCHEMA = "unhang.verify/1"
_NOTHING = "-"


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
        is_sure = luck is not None and luck <= 1 - SURE
        return f"the chance that so many pass by luck is {100 * luck:.0f} %" if is_sure and luck is not None else ""
    failed_s = [s for run in before if run.has_failed and (s := run.failed_after_s)]
    lasted_s = sum(run.seconds or 0.0 for run in after)
    if failed_s and lasted_s >= _TIMES_AS_LONG * failed_s[0]:
        return f"{lasted_s:.0f} s without a failure, which had come after {failed_s[0]:.0f} s: {100 * SURE:.0f} % sure"
    return "" if failed_s or len(after) < MOST_RUNS else f"{len(after)} runs, and it is not known when the failure came"


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
        none = f"no failure in {len(before.runs)} runs before the change"
        return failed(name, f"{none}, so the runs after it prove nothing")
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
        reason = f"nothing shows that the run after had ranks; the run before had {ranks[0]}"
        return replace(skipped(name, reason), is_own=True)
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


# What `unhang verify` says: a table for people, JSON, JUnit.


def side_rows(sides: Sequence[Side]) -> list[tuple[str, ...]]:
    """The rows of the table: a name, and a text for each side."""
    rows: list[tuple[str, Callable[[Side], str]]] = [
        ("", lambda side: f"{side.name} ({len(side.runs)} runs)" if len(side.runs) > 1 else side.name),
        ("cause", lambda side: ", ".join(side.causes) or "none"),
        ("where", lambda side: next((where(run.findings[0]) for run in side.runs if run.findings), "") or _NOTHING),
        ("outcome", lambda side: _of_all_runs(side, lambda run: run.diagnosis.outcome.value)),
        ("exit code", lambda side: _of_all_runs(side, lambda r: _NOTHING if r.exit_code is None else str(r.exit_code))),
        ("findings", lambda side: _of_all_runs(side, lambda run: str(len(run.findings)))),
        ("steps reached", lambda side: _of_all_runs(side, lambda run: str(run.steps) if run.steps else _NOTHING)),
        ("step time, median", lambda side: duration(s.median_s) if (s := side.spread) else _NOTHING),
        ("  quartiles", lambda s: f"{duration(x.lower_s)} to {duration(x.upper_s)}" if (x := s.spread) else _NOTHING),
        ("  largest", lambda side: f"{duration(s.largest_s)} of {s.count}" if (s := side.spread) else _NOTHING),
        ("failed runs", lambda side: str(side.failures)),
    ]
    return [(name, *(show(side) for side in sides)) for name, show in rows]


def _of_all_runs(side: Side, what: Callable[[Run], str]) -> str:
    """The values of all runs, equal ones once."""
    return ", ".join(dict.fromkeys(what(run) for run in side.runs))


def checks_text(checks: Sequence[Check]) -> str:
    """One line for each check."""
    width = max((len(check.name) for check in checks), default=0)
    return "\n".join(f"{c.verdict.value:7}  {c.name:{width}}  {printable(c.reason, most=240)}" for c in checks)


def headline(verified: Verified) -> str:
    """The answer in one line."""
    code = verified.exit_code
    if code == 1:
        first = next(check for check in verified.checks if check.has_failed)
        gone = any(check.name == "cause_is_gone" and check.verdict is Verdict.PASS for check in verified.checks)
        other = next((check for check in verified.checks if check.name == "no_finding" and check.has_failed), None)
        if gone and other is not None:
            causes = " and ".join(verified.before.causes)
            return (
                f"NOT VERIFIED: {causes} is gone, but the job fails in another way: {printable(other.reason, most=200)}"
            )
        return f"NOT VERIFIED: {first.name}: {printable(first.reason, most=200)}"
    if code == 3:
        return "NOT JUDGED: the evidence does not suffice"
    if not verified.before.runs:
        return "AS EXPECTED"
    return f"VERIFIED: {' and '.join(verified.before.causes)} before, nothing after"


def verified_text(verified: Verified) -> str:
    """The whole as text."""
    sides = [side for side in (verified.before, verified.after) if side.runs]
    parts = [headline(verified), "", columns(side_rows(sides), 60), "", checks_text(verified.checks)]
    if verified.ratio is not None:
        meaning = "" if verified.ratio.is_certain else ": no difference is established"
        parts += ["", f"step time, after over before: {verified.ratio}{meaning}"]
    if verified.luck is not None:
        least = verified.before.failures.interval[0]
        parts += ["", _luck(verified.luck, least, verified.after.failures.total)]
    return "\n".join(parts) + "\n"


def _luck(luck: float, least: float, runs: int) -> str:
    text = f"a job that fails in {100 * least:.0f} % of its runs would pass {runs} run{'s' * (runs > 1)} in a row with a chance of {100 * luck:.0f} %"
    return f"{text}: repeat more often (--repeat) if the failure comes and goes" if luck > 0.05 else text


def _run_json(run: Run) -> dict[str, Any]:
    first = run.findings[0] if run.findings else None
    return {
        "folder": str(run.folder),
        "outcome": run.diagnosis.outcome.value,
        "exit_code": run.exit_code,
        "cause": run.cause or None,
        "culprit_ranks": list(first.culprit_ranks) if first else [],
        "findings": len(run.findings),
        "steps": run.steps,
        "seconds": run.seconds,
        "has_failed": run.has_failed,
    }


def _side_json(side: Side) -> dict[str, Any]:
    low, high = side.failures.interval
    spread = side.spread
    return {
        "runs": [_run_json(run) for run in side.runs],
        "failed": {"count": side.failures.count, "total": side.failures.total, "low": low, "high": high},
        "step_time_s": spread
        and {
            "median": spread.median_s,
            "lower_quartile": spread.lower_s,
            "upper_quartile": spread.upper_s,
            "largest": spread.largest_s,
            "count": spread.count,
        },
    }


def checks_json(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """The checks for programs."""
    return [{"name": c.name, "verdict": c.verdict.value, "reason": c.reason, "required": c.is_required} for c in checks]


def verified_json(verified: Verified) -> str:
    """The whole for programs."""
    ratio = verified.ratio
    content = {
        "schema": SCHEMA,
        "exit_code": verified.exit_code,
        "headline": headline(verified),
        "before": _side_json(verified.before),
        "after": _side_json(verified.after),
        "checks": checks_json(verified.checks),
        "step_time_ratio": ratio
        and {"value": ratio.value, "low": ratio.low, "high": ratio.high, "resampled_over": ratio.over},
        "chance_of_luck": verified.luck,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def checks_junit(checks: Sequence[Check]) -> str:
    """JUnit XML: one test case for each check; a required one that was skipped is a failure."""
    kinds = ["failure" if c.has_failed else "skipped" if c.verdict is Verdict.SKIPPED else "" for c in checks]
    cases = [JUnitCase(c.name, kind, printable(c.reason)) for c, kind in zip(checks, kinds, strict=True)]
    return junit(cases, "unhang verify", "unhang.verify")
