"""What is said of environment variables: why it is wrong, where it is set, what to do, how to take it back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from unhang.model import EvidenceLine, Finding, Fix, Location
from unhang.read.environment.settings import Assignment, Settings

CAUSE = "misconfigured-env"
VALUE, HARMFUL, USELESS, AGAINST = "env-value", "env-harmful", "env-without-effect", "env-contradiction"
WITHOUT = ""
_SHOWN = 120


class Opinion(NamedTuple):
    """What is said of a variable, or of several that stand against each other.

    `rule`: by which; `fixes`: what to set instead of the first variable, or WITHOUT to take it out, or whole fixes.
    """

    rule: str
    confidence: float
    title: str
    because: str
    fixes: Sequence[str | Fix] = (WITHOUT,)


def shown(assignment: Assignment) -> str:
    """NAME=VALUE, for people."""
    value = assignment.value if assignment.value is not None else assignment.expression
    return f"{assignment.name}={value}" if len(value) <= _SHOWN else f"{assignment.name}={value[:_SHOWN]}..."


def finding_of(s: Settings, assignments: Sequence[Assignment], opinion: Opinion) -> Finding:
    """The opinion as a finding; the first of the variables is where the change belongs."""
    first = assignments[0]
    name = PurePath(s.path).name or s.path
    fixes = (
        without(s, first) if f == WITHOUT else instead(s, first, f) if isinstance(f, str) else f for f in opinion.fixes
    )
    return Finding(
        rule=opinion.rule,
        cause=CAUSE,
        title=opinion.title,
        confidence=opinion.confidence,
        culprit_ranks=(),
        because=opinion.because,
        location=Location(s.path, first.line, "") if first.line else None,
        evidence=tuple(
            EvidenceLine(f"{name}, {a.reported_by}" if first.line and a.reported_by else name, shown(a), a.line)
            for a in assignments
        ),
        fixes=tuple(fixes),
    )


def without(s: Settings, a: Assignment, title: str = "", verify: str = "") -> Fix:
    """Takes the variable out."""
    checked = verify or f"unhang env{f' {s.path}' if a.line else ''}: no finding on {a.name}"
    title = title or f"{'Unset' if s.is_live else 'Take'} {a.name}{'' if s.is_live else ' out'}"
    if s.is_live:
        return Fix(title, checked, command=f"unset {a.name}", undo=f"export {shown(a)}")
    if s.form == "log":
        return Fix(title, checked, setting=f"no {a.name} where the job is started", undo=f"set {shown(a)} again")
    return Fix(title, checked, advice=f"- {shown(a)}    ({_place(s, a)})", undo="put the line back")


def instead(s: Settings, a: Assignment, change: str, title: str = "", verify: str = "") -> Fix:
    """Sets something else."""
    undo = f"export {shown(a)}" if s.is_live else f"back to {shown(a)} at {_place(s, a)}"
    return Fix(title or f"Set {change}", verify or f"unhang env: no finding on {a.name}", setting=change, undo=undo)


def _place(s: Settings, a: Assignment) -> str:
    """Where it is set, for people: a file and its line, or a process."""
    return f"{s.path}:{a.line}" if a.line else s.path
