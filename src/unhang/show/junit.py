"""Checks as JUnit XML, for schedulers and CI: one test case per rule or question; skipped is skipped, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from unhang.model import Diagnosis, Finding, Verdict
from unhang.show.paper import printable

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


def to_junit(diagnosis: Diagnosis, seconds: float, suite: str = "unhang check") -> bytes:
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
    return b"<?xml version='1.0' encoding='utf-8'?>\n" + junit(cases, suite, "unhang.rules", seconds).encode()


def _text(finding: Finding) -> str:
    evidence = [f"{e.source}: {e.text}" for e in finding.evidence]
    fixes = [f"fix: {f.title}: {f.patch or f.command or f.setting}" for f in finding.fixes if f.helps]
    return "\n".join(printable(line) for line in (finding.title, finding.because, *evidence, *fixes))
