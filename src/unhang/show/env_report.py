"""The report on environment variables: text, JSON, and the reference list."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from unhang.errors import WrongUsage
from unhang.model import Finding, Fix
from unhang.read.environment.settings import Variable, beliefs, tables, variables
from unhang.rules.env import EnvVerdict
from unhang.show.check_report import SEVERITIES, count, count_findings
from unhang.show.paper import Paper, text_width
from unhang.show.report_json import encoded, evidence_json

SCHEMA = "unhang.env/1"
LIST_SCHEMA = "unhang.env-list/1"
_MOST = 200
_MOST_PLACES = 6


def first_line(verdict: EnvVerdict) -> str:
    """The answer in one line."""
    looked_at = f"{count(verdict.judged, 'setting')} in {count(verdict.sources, 'place')}"
    if not verdict.findings:
        return f"{looked_at}: nothing wrong found"
    return f"{count_findings(verdict.findings)} on {looked_at}"


def render_env(verdict: EnvVerdict, unreadable: Sequence[str] = (), color: bool = False) -> str:
    """The report as text, the worst finding first; without findings it is one line."""
    paper = Paper(color, text_width())
    badge, style = ("ENV", "warn") if verdict.findings else ("CLEAN", "good")
    paper.line((badge, style), "  ", (first_line(verdict), "strong"))
    for finding in verdict.findings[:_MOST]:
        _finding(paper, finding)
    if len(verdict.findings) > _MOST:
        paper.line((f"... and {len(verdict.findings) - _MOST} more findings", "dim"))
    if unreadable:
        paper.heading("Not read")
        for reason in unreadable:
            paper.prose(reason, lead="- ")
    return str(paper)


def _finding(paper: Paper, finding: Finding) -> None:
    paper.line()
    word = finding.severity
    paper.line((word.ljust(8), SEVERITIES[word]), "  ", (finding.title, "strong"))
    for line in finding.evidence[:_MOST_PLACES]:
        where = f"{finding.location.file}:{line.line}" if finding.location and line.line else line.source
        paper.line((f"{where}  {line.text}", "dim"), indent=10)
    if len(finding.evidence) > _MOST_PLACES:
        paper.line((f"... and {len(finding.evidence) - _MOST_PLACES} more places", "dim"), indent=10)
    paper.prose(finding.because, indent=10)
    for fix in finding.fixes:
        paper.prose(fix.title, indent=10, lead="-> ")
        paper.verbatim(fix.change, indent=13)
        if fix.verify:
            paper.prose(fix.verify, indent=13, lead="verify: ")
        if fix.undo and fix.undo != "-":
            paper.prose(fix.undo, indent=13, lead="undo:   ")


def _fix_json(fix: Fix) -> dict[str, str]:
    return {"title": fix.title, **fix.changes, "verify": fix.verify, "undo": fix.undo}


def _finding_json(finding: Finding) -> dict[str, Any]:
    place = finding.location
    return {
        "id": finding.id,
        "rule": finding.rule,
        "cause": finding.cause,
        "severity": finding.severity,
        "title": finding.title,
        "confidence": finding.confidence,
        "location": place and {"file": place.file, "line": place.line},
        "because": finding.because,
        "evidence": evidence_json(finding),
        "fixes": [_fix_json(fix) for fix in finding.fixes],
    }


def env_json(verdict: EnvVerdict, unreadable: Sequence[str] = ()) -> bytes:
    """The report as UTF-8 JSON."""
    report = {
        "schema": SCHEMA,
        "judged": verdict.judged,
        "sources": verdict.sources,
        "tables": _tables(),
        "findings": [_finding_json(f) for f in verdict.findings],
        "unreadable": list(unreadable),
    }
    return encoded(report) + b"\n"


def _tables() -> list[dict[str, Any]]:
    return [{"library": t.library, "version": t.version, "read_from": t.read_from} for t in tables()]


def render_list(chosen: Sequence[Variable], color: bool = False) -> str:
    """The reference as text: first what has a meaning, then names of which only the existence is known."""
    paper = Paper(color, text_width())
    known = [v for v in chosen if v.meaning]
    for variable in known:
        paper.line((variable.name, "strong"), "  ", (_facts(variable), "dim"))
        paper.prose(f"{variable.meaning}.", indent=4)
    rest = [v for v in chosen if not v.meaning]
    if rest:
        paper.heading("Real; not documented here")
        for variable in rest:
            paper.line(f"{variable.name}  ", (variable.library, "dim"), indent=2)
    believed = [n for n in beliefs() if len(chosen) > 1 or not chosen]
    if believed and len(chosen) > _MOST:
        paper.heading("Believed to exist; no library reads them")
        for name in believed:
            paper.prose(f"{name}: {beliefs()[name].instead}", lead="- ")
    paper.line()
    versions = "; ".join(f"{t.library}: {t.read_from}" for t in tables())
    paper.prose(f"Names from {versions}.", indent=0, style="dim")
    return str(paper)


def _facts(v: Variable) -> str:
    facts = [v.library, v.accepts, f"default {v.default}" if v.default else "", f"since {v.since}" if v.since else ""]
    facts += [f"until {v.until}" if v.until else "", f"now {v.now}" if v.now else ""]
    return ", ".join(f for f in facts if f)


def list_json(chosen: Sequence[Variable]) -> bytes:
    """The reference as UTF-8 JSON."""
    entries = [
        {
            "name": v.name,
            "library": v.library,
            "type": v.type,
            "accepts": v.accepts,
            "default": v.default or None,
            "since": v.since or None,
            "until": v.until or None,
            "renamed_to": v.now or None,
            "meaning": v.meaning or None,
        }
        for v in chosen
    ]
    return encoded({"schema": LIST_SCHEMA, "tables": _tables(), "variables": entries}) + b"\n"


def chosen_variables(patterns: Sequence[str]) -> list[Variable]:
    """The variables whose name contains one of the words, or matches a pattern; all without any.

    Raises:
        WrongUsage: there is none.
    """
    chosen = [v for v in variables().values() if not patterns or any(_matches(v, p.upper()) for p in patterns)]
    if not chosen:
        asked = " ".join(patterns)
        if belief := beliefs().get(asked.upper()):
            raise WrongUsage(f"no library reads {asked.upper()}; what does it: {belief.instead}")
        raise WrongUsage(f"no variable matches {asked!r}")
    return chosen


def _matches(variable: Variable, pattern: str) -> bool:
    return fnmatchcase(variable.name, pattern) if set(pattern) & set("*?[") else pattern in variable.name
