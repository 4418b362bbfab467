"""A check as JUnit XML, for schedulers and CI: one test case per rule; skipped is skipped, with the reason."""

from __future__ import annotations

from xml.etree import ElementTree

from unhang.model import Diagnosis, Finding, Verdict
from unhang.show.printable import printable


def to_junit(diagnosis: Diagnosis, seconds: float, suite: str = "unhang check") -> bytes:
    """UTF-8 XML with a final newline. A rule with findings fails with its first title; all its findings are in the text."""
    outcomes = diagnosis.outcomes
    counts = {verdict: sum(o.verdict is verdict for o in outcomes) for verdict in Verdict}
    root = ElementTree.Element(
        "testsuite",
        name=suite,
        tests=str(len(outcomes)),
        failures=str(counts[Verdict.FAIL]),
        errors=str(counts[Verdict.ERROR]),
        skipped=str(counts[Verdict.SKIPPED]),
        time=f"{seconds:.3f}",
    )
    for outcome in outcomes:
        case = ElementTree.SubElement(root, "testcase", name=outcome.rule, classname="unhang.rules", time="0")
        reason = printable(outcome.reason)
        if outcome.verdict is Verdict.FAIL:
            found = [f for f in diagnosis.findings if f.rule == outcome.rule]
            failure = ElementTree.SubElement(case, "failure", message=reason, type=found[0].cause if found else "")
            failure.text = "\n\n".join(_text(f) for f in found)
        elif outcome.verdict is Verdict.SKIPPED:
            ElementTree.SubElement(case, "skipped", message=reason)
        elif outcome.verdict is Verdict.ERROR:
            ElementTree.SubElement(case, "error", message=reason)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _text(finding: Finding) -> str:
    evidence = [f"{e.source}: {e.text}" for e in finding.evidence]
    fixes = [f"fix: {f.title}: {f.patch or f.command or f.setting}" for f in finding.fixes if f.helps]
    return "\n".join(printable(line) for line in (finding.title, finding.because, *evidence, *fixes))
