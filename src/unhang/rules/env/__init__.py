"""Judges environment variables: each by its name and its value, and all of one source together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from unhang.model import Finding
from unhang.model.findings import WRONG
from unhang.read.environment.settings import Settings
from unhang.rules.env.known import judge_name, judge_value
from unhang.rules.env.opinion import finding_of, shown
from unhang.rules.env.single import judge_single
from unhang.rules.env.together import judge_together

__all__ = ["EnvVerdict", "judge_settings", "shown"]


@dataclass(frozen=True, slots=True)
class EnvVerdict:
    """What was found, the worst first; `judged`: how many settings of variables were looked at, in how many sources."""

    findings: tuple[Finding, ...]
    judged: int
    sources: int


def judge_settings(sources: Sequence[Settings]) -> EnvVerdict:
    """The verdict on everything that the sources set."""
    used = frozenset().union(*(s.mentions for s in sources if s.form == "python")) if sources else frozenset()
    found = _once(f for s in sources for f in _of_source(s, used))
    ordered = sorted(
        found, key=lambda f: (-f.confidence, *((f.location.file, f.location.line) if f.location else ("", 0)), f.title)
    )
    numbered = tuple(replace(f, id=f"F{i + 1}") for i, f in enumerate(ordered))
    judged = [s for s in sources if s.assignments or s.launches]
    return EnvVerdict(
        numbered, sum(len(s.assignments) + len(s.launches) for s in judged), len({s.path for s in judged})
    )


def _of_source(s: Settings, used: frozenset[str]) -> Iterator[Finding]:
    together = list(judge_together(s))
    covered = {(f.evidence[0].text, f.evidence[0].line) for f in together}
    for assignment in s.assignments:
        if by_name := judge_name(s, assignment, used):
            yield finding_of(s, (assignment,), by_name)
        by_value = judge_value(s, assignment) or judge_single(s, assignment)
        if by_value is None:
            continue
        found = finding_of(s, (assignment,), by_value)
        # What a pair says of a variable is more than what the variable says alone, unless its value is wrong by itself.
        if found.confidence >= WRONG or (found.evidence[0].text, found.evidence[0].line) not in covered:
            yield found
    yield from together


def _once(findings: Iterator[Finding]) -> list[Finding]:
    """Findings that say the same of several places become one, with all places as evidence."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.title, finding.location.file if finding.location else finding.evidence[0].source)
        first = kept.setdefault(key, finding)
        if first is not finding:
            more = tuple(e for e in finding.evidence if e not in first.evidence)
            kept[key] = replace(first, evidence=(*first.evidence, *more))
    return list(kept.values())
