"""What `unhang verify` says: a table for people, JSON, JUnit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from unhang.model import Verdict
from unhang.show.check_report import JUnitCase, junit
from unhang.show.paper import columns, duration, printable
from unhang.verify.before_after import Side, Verified, where
from unhang.verify.judging import Check
from unhang.verify.runs import Run

SCHEMA = "unhang.verify/1"
_NOTHING = "-"


def side_rows(sides: Sequence[Side]) -> list[tuple[str, ...]]:
    """The rows of the table: a name, and a text for each side."""
    rows: list[tuple[str, Callable[[Side], str]]] = [
        ("", lambda side: f"{side.name} ({len(side.runs)} runs)" if len(side.runs) > 1 else side.name),
        ("cause", lambda side: ", ".join(side.causes) or "none"),
        ("where", lambda side: next((where(run.findings[0]) for run in side.runs if run.findings), "") or _NOTHING),
        ("outcome", lambda side: _of_all_runs(side, lambda run: run.diagnosis.outcome.value)),
        (
            "exit code",
            lambda side: _of_all_runs(side, lambda run: _NOTHING if run.exit_code is None else str(run.exit_code)),
        ),
        ("findings", lambda side: _of_all_runs(side, lambda run: str(len(run.findings)))),
        ("steps reached", lambda side: _of_all_runs(side, lambda run: str(run.steps) if run.steps else _NOTHING)),
        ("step time, median", lambda side: duration(s.median_s) if (s := side.spread) else _NOTHING),
        (
            "  quartiles",
            lambda side: f"{duration(s.lower_s)} to {duration(s.upper_s)}" if (s := side.spread) else _NOTHING,
        ),
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
            return f"NOT VERIFIED: {causes} is gone, and the job fails otherwise: {printable(other.reason, most=200)}"
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
    text = f"a job that fails in {100 * least:.0f} % of its runs would pass {runs} run{'s' * (runs > 1)} in a row with chance {100 * luck:.0f} %"
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
    cases = [JUnitCase(c.name, _junit_kind(c), printable(c.reason)) for c in checks]
    return junit(cases, "unhang verify", "unhang.verify")


def _junit_kind(check: Check) -> str:
    return "failure" if check.has_failed else "skipped" if check.verdict is Verdict.SKIPPED else ""
