"""The result of a check as text (what is wrong, what could not be judged and why, what is fine), and checks as JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unhang.model import Case, Diagnosis, Finding, Verdict
from unhang.rules.registry import all_rules
from unhang.show.headline import undecided
from unhang.show.paper import Paper, duration, printable, text_width

SEVERITIES = {"wrong": "bad", "doubtful": "warn", "note": "dim"}
_MOST = 100
_MOST_EVIDENCE = 6
_MOST_RULES = 4


def count(number: int, what: str) -> str:
    """A number of things."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def count_findings(findings: Sequence[Finding]) -> str:
    """How many, and how bad: `3 findings (1 wrong, 2 note)`."""
    found = [f.severity for f in findings]
    counted = ", ".join(f"{found.count(s)} {s}" for s in SEVERITIES if s in found)
    return f"{count(len(found), 'finding')} ({counted})"


def _areas() -> dict[str, str]:
    """Rule -> the area that it judges."""
    return {rule.id: rule.reads[0].split(".")[0] for rule in all_rules() if rule.reads}


def skipped_areas(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Areas of which no rule could judge."""
    areas = _areas()
    verdicts: dict[str, set[Verdict]] = {}
    for outcome in diagnosis.outcomes:
        verdicts.setdefault(areas.get(outcome.rule, ""), set()).add(outcome.verdict)
    return tuple(sorted(area for area, seen in verdicts.items() if seen <= {Verdict.SKIPPED, Verdict.ERROR}))


def first_line(diagnosis: Diagnosis, case: Case) -> str:
    """The answer in one line."""
    verdicts = [o.verdict for o in diagnosis.outcomes]
    who = f"{count(len(case.world), 'rank')} on {count(case.job.nodes, 'node')}"
    judged = f"{count(verdicts.count(Verdict.PASS), 'rule')} passed, {verdicts.count(Verdict.SKIPPED)} skipped"
    if not diagnosis.findings:
        return f"{who}: {judged}" + ("" if Verdict.PASS in verdicts else "; nothing could be judged")
    return f"{count_findings(diagnosis.findings)} on {who}; {judged}"


def render_check(diagnosis: Diagnosis, case: Case, seconds: float, color: bool = False) -> str:
    """The report, the worst finding first. Skipped is never shown as passed."""
    paper = Paper(color, text_width())
    has_passed = any(o.verdict is Verdict.PASS for o in diagnosis.outcomes)
    badge = ("CHECK", "warn") if diagnosis.findings else ("CLEAN", "good") if has_passed else ("UNKNOWN", "warn")
    paper.line(badge, "  ", (first_line(diagnosis, case), "strong"), (f"  ({duration(seconds)})", "dim"))
    for finding in diagnosis.findings[:_MOST]:
        _finding(paper, finding)
    if len(diagnosis.findings) > _MOST:
        paper.line((f"... and {len(diagnosis.findings) - _MOST} more findings", "dim"))
    _skipped(paper, diagnosis)
    _not_read(paper, diagnosis)
    failed = [o for o in diagnosis.outcomes if o.verdict is Verdict.ERROR]
    if failed:
        paper.heading("Our own errors")
        paper.table([(o.rule, o.reason) for o in failed])
    return str(paper)


def _finding(paper: Paper, finding: Finding) -> None:
    paper.line()
    word = finding.severity
    paper.line((word.ljust(8), SEVERITIES[word]), "  ", (finding.title, "strong"), (f"  [{finding.cause}]", "dim"))
    for line in finding.evidence[:_MOST_EVIDENCE]:
        paper.prose(f"{line.source}: {line.text}", indent=10, style="dim", hang=2)
    paper.prose(finding.because, indent=10)
    for fix in finding.fixes:
        paper.prose(fix.title, indent=10, lead="-> " if fix.helps else "")
        if fix.change:
            paper.verbatim(fix.change, indent=13)
        paper.prose(fix.verify, indent=13, lead="verify: " if fix.helps else "")
        if fix.undo:
            paper.prose(fix.undo, indent=13, lead="undo:   ")


def _skipped(paper: Paper, diagnosis: Diagnosis) -> None:
    missing = undecided(diagnosis)
    if not missing:
        return
    paper.heading("Skipped: not judged")
    for reason, rules in missing:
        more = f" and {len(rules) - _MOST_RULES} more" if len(rules) > _MOST_RULES else ""
        paper.prose(f"{reason}  ({', '.join(rules[:_MOST_RULES])}{more})", lead="- ")


def _not_read(paper: Paper, diagnosis: Diagnosis) -> None:
    """What is missing though the rules could judge without it: of one host, say."""
    reasons = " ".join(o.reason for o in diagnosis.outcomes if o.verdict is Verdict.SKIPPED)
    lacks = [lack for lack in diagnosis.inventory.absent if lack.reason not in reasons]
    if lacks:
        paper.heading("Not read")
        for lack in lacks[:_MOST]:
            paper.prose(f"{lack.what}: {lack.reason}", lead="- ")


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
