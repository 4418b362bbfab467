"""What is found before a job runs, the worst first: by `unhang check` (skipped is never shown as passed), by `unhang env`; checks as JUnit XML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from unhang.errors import WrongUsage
from unhang.model import Case, Diagnosis, Finding, Verdict
from unhang.read.environment import Variable, beliefs, tables, variables
from unhang.rules.env import EnvVerdict
from unhang.rules.registry import all_rules
from unhang.show.paper import Paper, duration, printable, text_width
from unhang.show.verdict import encoded, evidence_json, fields, undecided

_STYLES = {"wrong": "bad", "doubtful": "warn", "note": "dim"}
_MOST = 100
_MOST_ENV = 200
_MOST_EVIDENCE = 6
_MOST_RULES = 4
ENV_SCHEMA = "unhang.env/1"
LIST_SCHEMA = "unhang.env-list/1"


def _count(number: int, what: str) -> str:
    """A number of things."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _count_findings(findings: Sequence[Finding]) -> str:
    """How many, and how bad: `3 findings (1 wrong, 2 note)`."""
    found = [f.severity for f in findings]
    counted = ", ".join(f"{found.count(s)} {s}" for s in _STYLES if s in found)
    return f"{_count(len(found), 'finding')} ({counted})"


def _head(paper: Paper, finding: Finding, *more: tuple[str, str]) -> None:
    word = finding.severity
    paper.line()
    paper.line((word.ljust(8), _STYLES[word]), "  ", (finding.title, "strong"), *more)


def _remedies(paper: Paper, finding: Finding) -> None:
    paper.prose(finding.because, indent=10)
    for fix in finding.fixes:
        paper.prose(fix.title, indent=10, lead="-> " if fix.helps else "")
        if fix.change:
            paper.verbatim(fix.change, indent=13)
        if fix.verify:
            paper.prose(fix.verify, indent=13, lead="verify: " if fix.helps else "")
        if fix.undo not in ("", "-"):
            paper.prose(fix.undo, indent=13, lead="undo:   ")


def _unread(paper: Paper, reasons: Sequence[str]) -> None:
    if reasons:
        paper.heading("Not read")
        for reason in reasons:
            paper.prose(reason, lead="- ")


def skipped_areas(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Areas of which no rule could judge."""
    areas = {rule.id: rule.reads[0].split(".")[0] for rule in all_rules() if rule.reads}
    verdicts: dict[str, set[Verdict]] = {}
    for outcome in diagnosis.outcomes:
        verdicts.setdefault(areas.get(outcome.rule, ""), set()).add(outcome.verdict)
    return tuple(sorted(area for area, seen in verdicts.items() if seen <= {Verdict.SKIPPED, Verdict.ERROR}))


def _check_line(diagnosis: Diagnosis, case: Case) -> str:
    """The answer in one line."""
    verdicts = [o.verdict for o in diagnosis.outcomes]
    who = f"{_count(len(case.world), 'rank')} on {_count(case.job.nodes, 'node')}"
    judged = f"{_count(verdicts.count(Verdict.PASS), 'rule')} passed, {verdicts.count(Verdict.SKIPPED)} skipped"
    if not diagnosis.findings:
        return f"{who}: {judged}" + ("" if Verdict.PASS in verdicts else "; nothing could be judged")
    return f"{_count_findings(diagnosis.findings)} on {who}; {judged}"


def render_check(diagnosis: Diagnosis, case: Case, seconds: float, color: bool = False) -> str:
    """The report, the worst finding first. Skipped is never shown as passed."""
    paper = Paper(color, text_width())
    has_passed = any(o.verdict is Verdict.PASS for o in diagnosis.outcomes)
    badge = ("CHECK", "warn") if diagnosis.findings else ("CLEAN", "good") if has_passed else ("UNKNOWN", "warn")
    paper.line(badge, "  ", (_check_line(diagnosis, case), "strong"), (f"  ({duration(seconds)})", "dim"))
    _findings(paper, diagnosis.findings, _finding, _MOST)
    _skipped(paper, diagnosis)
    _unread(paper, _not_read(diagnosis))
    failed = [o for o in diagnosis.outcomes if o.verdict is Verdict.ERROR]
    if failed:
        paper.heading("Our own errors")
        paper.table([(o.rule, o.reason) for o in failed])
    return str(paper)


def _findings(paper: Paper, findings: Sequence[Finding], show: Callable[[Paper, Finding], None], most: int) -> None:
    for finding in findings[:most]:
        show(paper, finding)
    paper.more(len(findings) - most, "findings", indent=0)


def _finding(paper: Paper, finding: Finding) -> None:
    _head(paper, finding, (f"  [{finding.cause}]", "dim"))
    for line in finding.evidence[:_MOST_EVIDENCE]:
        paper.prose(f"{line.source}: {line.text}", indent=10, style="dim", hang=2)
    _remedies(paper, finding)


def _skipped(paper: Paper, diagnosis: Diagnosis) -> None:
    missing = undecided(diagnosis)
    if not missing:
        return
    paper.heading("Skipped: not judged")
    for reason, rules in missing:
        more = f" and {len(rules) - _MOST_RULES} more" if len(rules) > _MOST_RULES else ""
        paper.prose(f"{reason}  ({', '.join(rules[:_MOST_RULES])}{more})", lead="- ")


def _not_read(diagnosis: Diagnosis) -> list[str]:
    """What is missing though the rules could judge without it: of one host, say."""
    reasons = " ".join(o.reason for o in diagnosis.outcomes if o.verdict is Verdict.SKIPPED)
    lacks = [lack for lack in diagnosis.inventory.absent if lack.reason not in reasons]
    return [f"{lack.what}: {lack.reason}" for lack in lacks[:_MOST]]


_KINDS = {Verdict.FAIL: "failure", Verdict.SKIPPED: "skipped", Verdict.ERROR: "error"}


class JUnitCase(NamedTuple):
    """One test case. `kind`: failure, skipped, error, or "" for one that passed. `type`: of a failure, its cause."""

    name: str
    kind: str
    message: str
    type: str | None = None
    text: str | None = None


def junit(cases: Sequence[JUnitCase], suite: str, classname: str, seconds: float | None = None) -> str:
    """The XML with a final newline, without a declaration."""
    from xml.etree import ElementTree

    kinds = [case.kind for case in cases]
    counts = {"tests": len(cases), "failures": kinds.count("failure"), "errors": kinds.count("error")}
    about = {name: str(count) for name, count in {**counts, "skipped": kinds.count("skipped")}.items()}
    about |= {} if seconds is None else {"time": f"{seconds:.3f}"}
    root = ElementTree.Element("testsuite", {"name": suite, **about})
    for case in cases:
        element = ElementTree.SubElement(root, "testcase", name=case.name, classname=classname, time="0")
        if case.kind:
            found = ElementTree.SubElement(element, case.kind, message=case.message)
            if case.type is not None:
                found.set("type", case.type)
            found.text = case.text
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def to_junit(diagnosis: Diagnosis, seconds: float) -> bytes:
    """UTF-8 XML with a final newline. A rule with findings fails with its first title; all its findings are in the text."""
    cases = []
    for outcome in diagnosis.outcomes:
        kind, reason = _KINDS.get(outcome.verdict, ""), printable(outcome.reason)
        if outcome.verdict is Verdict.FAIL:
            found = [f for f in diagnosis.findings if f.rule == outcome.rule]
            text = "\n\n".join(map(_text, found))
            cases.append(JUnitCase(outcome.rule, kind, reason, found[0].cause if found else "", text))
        else:
            cases.append(JUnitCase(outcome.rule, kind, reason))
    return b"<?xml version='1.0' encoding='utf-8'?>\n" + junit(cases, "unhang check", "unhang.rules", seconds).encode()


def _text(finding: Finding) -> str:
    evidence = [f"{e.source}: {e.text}" for e in finding.evidence]
    fixes = [f"fix: {f.title}: {f.change}" for f in finding.fixes if f.helps]
    return "\n".join(printable(line) for line in (finding.title, finding.because, *evidence, *fixes))


# `unhang env`: settings, and the reference of the variables.


def _env_line(verdict: EnvVerdict) -> str:
    """The answer in one line."""
    looked_at = f"{_count(verdict.judged, 'setting')} in {_count(verdict.sources, 'place')}"
    if not verdict.findings:
        return f"{looked_at}: nothing wrong found"
    return f"{_count_findings(verdict.findings)} on {looked_at}"


def render_env(verdict: EnvVerdict, unreadable: Sequence[str], color: bool) -> str:
    """The report as text, the worst finding first; without findings it is one line."""
    paper = Paper(color, text_width())
    badge, style = ("ENV", "warn") if verdict.findings else ("CLEAN", "good")
    paper.line((badge, style), "  ", (_env_line(verdict), "strong"))
    _findings(paper, verdict.findings, _setting, _MOST_ENV)
    _unread(paper, unreadable)
    return str(paper)


def _setting(paper: Paper, finding: Finding) -> None:
    _head(paper, finding)
    for line in finding.evidence[:_MOST_EVIDENCE]:
        where = f"{finding.location.file}:{line.line}" if finding.location and line.line else line.source
        paper.line((f"{where}  {line.text}", "dim"), indent=10)
    paper.more(len(finding.evidence) - _MOST_EVIDENCE, "places", indent=10)
    _remedies(paper, finding)


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        **fields(finding, "id", "rule", "cause", "severity", "title", "confidence"),
        "location": finding.location and fields(finding.location, "file", "line"),
        "because": finding.because,
        "evidence": evidence_json(finding),
        "fixes": [{"title": f.title, **f.changes, "verify": f.verify, "undo": f.undo} for f in finding.fixes],
    }


def env_json(verdict: EnvVerdict, unreadable: Sequence[str]) -> bytes:
    """The report as UTF-8 JSON."""
    report = {
        "schema": ENV_SCHEMA,
        "judged": verdict.judged,
        "sources": verdict.sources,
        "tables": _tables(),
        "findings": [_finding_json(f) for f in verdict.findings],
        "unreadable": list(unreadable),
    }
    return encoded(report) + b"\n"


def _tables() -> list[dict[str, Any]]:
    return [fields(table, "library", "version", "read_from") for table in tables()]


def render_list(chosen: Sequence[Variable], color: bool) -> str:
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
    if len(chosen) > _MOST_ENV:
        paper.heading("Believed to exist; no library reads them")
        for name, belief in beliefs().items():
            paper.prose(f"{name}: {belief.instead}", lead="- ")
    paper.line()
    versions = "; ".join(f"{t.library}: {t.read_from}" for t in tables())
    paper.prose(f"Names from {versions}.", indent=0, style="dim")
    return str(paper)


def _facts(v: Variable) -> str:
    facts = [v.library, v.accepts, f"default {v.default}" if v.default else "", f"since {v.since}" if v.since else ""]
    facts += [f"until {v.until}" if v.until else "", f"now {v.now}" if v.now else ""]
    return ", ".join(f for f in facts if f)


_OPTIONAL = {"default": "default", "since": "since", "until": "until", "renamed_to": "now", "meaning": "meaning"}


def list_json(chosen: Sequence[Variable]) -> bytes:
    """The reference as UTF-8 JSON."""
    entries = [
        fields(v, "name", "library", "type", "accepts")
        | {key: getattr(v, name) or None for key, name in _OPTIONAL.items()}
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
