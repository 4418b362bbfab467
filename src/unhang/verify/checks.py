"""What one question to a run came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unhang.model import Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to one question. `is_required`: skipped counts as failed. `is_own`: asked without having been written."""

    name: str
    verdict: Verdict
    reason: str
    is_required: bool = False
    is_own: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether it speaks against the run."""
        return self.verdict is Verdict.FAIL or (self.verdict is Verdict.SKIPPED and self.is_required)


def passed(name: str, reason: str) -> Check:
    """It is as it should be."""
    return Check(name, Verdict.PASS, reason)


def failed(name: str, reason: str) -> Check:
    """It is not."""
    return Check(name, Verdict.FAIL, reason)


def skipped(name: str, reason: str) -> Check:
    """The evidence does not tell."""
    return Check(name, Verdict.SKIPPED, reason)


def of_all_runs(checks: Sequence[Check]) -> Check:
    """The same question to several runs as one answer: the first failure, else what was skipped, else the first answer."""
    for verdict in (Verdict.FAIL, Verdict.SKIPPED):
        found = [(number, check) for number, check in enumerate(checks, 1) if check.verdict is verdict]
        if found and len(checks) > 1:
            number, check = found[0]
            return replace(check, reason=f"{len(found)} of {len(checks)} runs, first run {number}: {check.reason}")
        if found:
            return found[0][1]
    return checks[0] if len(checks) == 1 else replace(checks[0], reason=f"all {len(checks)} runs: {checks[0].reason}")


def exit_code(checks: Sequence[Check]) -> int:
    """1 if one failed, 3 if a question of our own has no answer, or none has one; else 0."""
    if any(check.has_failed for check in checks):
        return 1
    unanswered = [check for check in checks if check.verdict is Verdict.SKIPPED]
    return 3 if any(check.is_own for check in unanswered) or len(unanswered) == len(checks) else 0
