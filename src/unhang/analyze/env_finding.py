"""What a finding on an environment variable looks like: where it is set, why it is wrong, what to do, how to take it back."""

from __future__ import annotations

from pathlib import PurePath

from unhang.model import EvidenceLine, Finding, Fix, Location
from unhang.read.environment.settings import Assignment, Settings

CAUSE = "misconfigured-env"
SHOWN = 120


def shown(assignment: Assignment) -> str:
    """NAME=VALUE, for people."""
    value = assignment.value if assignment.value is not None else assignment.expression
    return f"{assignment.name}={value}" if len(value) <= SHOWN else f"{assignment.name}={value[:SHOWN]}..."


def place(settings: Settings, assignment: Assignment) -> str:
    """Where it is set, for people: a file and its line, or a process."""
    return f"{settings.path}:{assignment.line}" if assignment.line else settings.path


def opinion(
    settings: Settings,
    assignments: tuple[Assignment, ...],
    rule: str,
    confidence: float,
    title: str,
    because: str,
    fixes: tuple[Fix, ...] = (),
) -> Finding:
    """A finding on one variable, or on several that stand against each other; the first one is where the change belongs."""
    first = assignments[0]
    name = PurePath(settings.path).name or settings.path
    is_file = bool(first.line)
    return Finding(
        rule=rule,
        cause=CAUSE,
        title=title,
        confidence=confidence,
        culprit_ranks=(),
        because=because,
        location=Location(settings.path, first.line or 0, "") if is_file else None,
        evidence=tuple(
            EvidenceLine(f"{name}, {a.told_by}" if is_file and a.told_by else name, shown(a), a.line)
            for a in assignments
        ),
        fixes=fixes or (without(settings, first),),
    )


def without(settings: Settings, assignment: Assignment, title: str = "", verify: str = "") -> Fix:
    """Takes the variable out."""
    name = assignment.name
    checked = verify or f"unhang env{f' {settings.path}' if assignment.line else ''}: no finding on {name}"
    if settings.is_live:
        return Fix(title or f"Unset {name}", checked, command=f"unset {name}", undo=f"export {shown(assignment)}")
    where = place(settings, assignment)
    if settings.form == "log":
        return Fix(
            title or f"Take {name} out",
            checked,
            setting=f"no {name} where the job is started",
            undo=f"set {shown(assignment)} again",
        )
    return Fix(
        title or f"Take {name} out", checked, patch=f"- {shown(assignment)}    ({where})", undo="put the line back"
    )


def instead(settings: Settings, assignment: Assignment, change: str, title: str = "", verify: str = "") -> Fix:
    """Sets something else."""
    taken_back = (
        f"export {shown(assignment)}"
        if settings.is_live
        else f"back to {shown(assignment)} at {place(settings, assignment)}"
    )
    return Fix(
        title or f"Set {change}",
        verify or f"unhang env: no finding on {assignment.name}",
        setting=change,
        undo=taken_back,
    )
