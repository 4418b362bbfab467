"""Judges environment variables: every one by itself, and all of one source together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from unhang.analyze.env_launch import judge_launches
from unhang.analyze.env_names import judge_name
from unhang.analyze.env_single import judge_single
from unhang.analyze.env_together import judge_together
from unhang.analyze.env_values import judge_value
from unhang.model import Finding
from unhang.model.findings import WRONG
from unhang.read.environment.settings import Settings


@dataclass(frozen=True, slots=True)
class EnvVerdict:
    """What was found, the worst first; `judged`: how many settings of variables were looked at, in how many sources."""

    findings: tuple[Finding, ...]
    judged: int
    sources: int


def judge_settings(sources: Sequence[Settings]) -> EnvVerdict:
    """The verdict on everything that the sources set."""
    used = frozenset().union(*(s.mentions for s in sources if s.form == "python")) if sources else frozenset()
    found = [f for s in sources for f in _of_source(s, used)]
    ordered = sorted(
        _once(found), key=lambda f: (-f.confidence, f.location.file if f.location else "", _line(f), f.title)
    )
    numbered = tuple(replace(f, id=f"F{i + 1}") for i, f in enumerate(ordered))
    judged = [s for s in sources if s.assignments or s.launches]
    return EnvVerdict(numbered, sum(len(s.assignments) + len(s.launches) for s in judged), len(judged))


def _line(finding: Finding) -> int:
    return finding.location.line if finding.location else 0


def _of_source(s: Settings, used: frozenset[str]) -> Iterator[Finding]:
    together = [*judge_together(s), *judge_launches(s)]
    covered = {(f.evidence[0].text, f.evidence[0].line) for f in together}
    for assignment in s.assignments:
        if by_name := judge_name(s, assignment, used):
            yield by_name
        found = judge_value(s, assignment) or judge_single(s, assignment)
        if found is None:
            continue
        # What a pair says of a variable is more than what the variable says alone, unless its value is wrong by itself.
        if found.confidence >= WRONG or (found.evidence[0].text, found.evidence[0].line) not in covered:
            yield found
    yield from together


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that say the same of several places become one, with all places as evidence."""
    kept: dict[tuple[str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.rule, finding.title, finding.location.file if finding.location else finding.evidence[0].source)
        if key in kept:
            first = kept[key]
            more = tuple(e for e in finding.evidence if e not in first.evidence)
            kept[key] = replace(first, evidence=(*first.evidence, *more))
        else:
            kept[key] = finding
    return list(kept.values())
