"""One generic test for all rules: they speak where they must, are silent where they must, and explain themselves."""

from __future__ import annotations

import inspect

import pytest

from unhang.model import CAUSES
from unhang.model.example import Fires, Quiet
from unhang.rules.base import NEEDS, Rule
from unhang.rules.registry import all_rules, judge

HEADINGS = ("What it detects:", "Why it hangs:", "How to confirm:", "How to fix:", "Sources:")


def examples(kind: type) -> list[object]:
    return [
        pytest.param(rule, example, id=f"{rule.id}-{i}")
        for rule in all_rules()
        for i, example in enumerate(rule.EXAMPLES)
        if isinstance(example, kind)
    ]


@pytest.mark.parametrize(("rule", "example"), examples(Fires))
def test_a_rule_names_the_culprits(rule: Rule, example: Fires) -> None:
    found = judge(example.case, [rule]).findings
    assert found, "the rule says nothing"
    assert found[0].cause == rule.cause
    assert found[0].culprit_ranks == example.culprits
    if example.line is not None:
        assert found[0].location is not None
        assert found[0].location.line == example.line


@pytest.mark.parametrize(("rule", "example"), examples(Fires))
def test_among_all_rules_its_finding_is_the_first(rule: Rule, example: Fires) -> None:
    diagnosis = judge(example.case)
    assert [o for o in diagnosis.outcomes if o.verdict == "error"] == []
    assert diagnosis.findings[0].rule == rule.id
    assert all(f.consequence_of == "F1" for f in diagnosis.findings[1:])


@pytest.mark.parametrize(("rule", "example"), examples(Quiet))
def test_a_rule_is_silent(rule: Rule, example: Quiet) -> None:
    assert judge(example.case, [rule]).findings == (), example.why


@pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.id)
def test_a_rule_explains_itself(rule: Rule) -> None:
    text = inspect.getdoc(type(rule)) or ""
    assert [h for h in HEADINGS if h not in text] == []
    assert rule.cause in CAUSES
    assert set(rule.needs) <= set(NEEDS)
    assert any(isinstance(e, Fires) for e in rule.EXAMPLES), "no example in which it speaks"
    assert any(isinstance(e, Quiet) for e in rule.EXAMPLES), "no healthy counter-example"


@pytest.mark.parametrize(("rule", "example"), examples(Fires))
def test_every_fix_can_be_checked(rule: Rule, example: Fires) -> None:
    for finding in judge(example.case, [rule]).findings:
        assert finding.fixes
        for fix in finding.fixes:
            assert fix.patch or fix.command or fix.setting
            assert fix.verify


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids))
