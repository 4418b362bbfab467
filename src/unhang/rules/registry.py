"""Finds the rules, judges a case with all of them, and puts the findings in order: cause first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from unhang.analyze.situation import Situation
from unhang.model import Case, Diagnosis, Finding, Inventory, RuleOutcome, Verdict
from unhang.rules.base import Rule
from unhang.rules.registry_modules import load_rules


def all_rules() -> tuple[Rule, ...]:
    """One instance of every rule, ordered by id."""
    return load_rules().rules


def _judge_one(rule: Rule, s: Situation) -> tuple[RuleOutcome, list[Finding]]:
    missing = rule.missing(s.case)
    if missing:
        return RuleOutcome(rule.id, Verdict.SKIPPED, missing), []
    try:
        found = list(rule.check(s))
    except Exception as error:  # noqa: BLE001  one faulty rule must not cost the verdict of the others
        return RuleOutcome(rule.id, Verdict.ERROR, f"{type(error).__name__}: {error}"), []
    if found:
        return RuleOutcome(rule.id, Verdict.FAIL, found[0].title), found
    return RuleOutcome(rule.id, Verdict.PASS), []


def _ordered(findings: Iterable[Finding], independent: bool) -> tuple[Finding, ...]:
    """The most certain finding is the root; the others are its consequences, unless they are faults of their own."""
    ordered = sorted(findings, key=lambda f: (-f.confidence, f.rule))
    numbered = [replace(f, id=f"F{i + 1}") for i, f in enumerate(ordered)]
    return tuple(
        replace(f, consequence_of="F1") if i and f.consequence_of is None and not (f.is_root or independent) else f
        for i, f in enumerate(numbered)
    )


def judge(case: Case | Situation, rules: Iterable[Rule] | None = None, independent: bool = False) -> Diagnosis:
    """Every rule's verdict on a case (or on one that is already analysed), and the diagnosis.

    `independent`: no job has failed, so no finding is the consequence of another.
    """
    situation = case if isinstance(case, Situation) else Situation(case)
    case = situation.case
    outcomes: list[RuleOutcome] = []
    findings: list[Finding] = []
    broken: tuple[str, ...] = ()
    if rules is None:
        rules, broken = load_rules(bool(case.readings))
    asked = [r for r in rules if r.applies(case)]
    for rule in sorted(asked, key=lambda r: r.is_fallback):
        if rule.is_fallback and findings:
            outcomes.append(RuleOutcome(rule.id, Verdict.PASS))
            continue
        outcome, found = _judge_one(rule, situation)
        outcomes.append(outcome)
        findings.extend(found)
    straggling = any(f.cause == "straggler" for f in findings)
    return Diagnosis(
        outcome=situation.outcome(straggling),
        job=case.job,
        hang=case.hang,
        findings=_ordered(findings, independent),
        outcomes=tuple(outcomes),
        inventory=Inventory(case.present, case.absent),
        notes=(*_notes(situation, bool(findings)), *broken),
    )


def _notes(s: Situation, found: bool) -> tuple[str, ...]:
    notes = []
    if s.case.hang is not None and s.case.hang.withdrawn:
        notes.append("a suspicion was withdrawn: the job moved again")
    if s.is_hang and not found:
        notes.append("no rule could establish a cause; the waits and stacks show what is known")
    return tuple(notes)
