"""One generic test for all rules: they speak where they must, are silent where they must, and explain themselves."""

from __future__ import annotations

import json
import re
from typing import Any

from unhang.model import CAUSES, Diagnosis, Finding
from unhang.rules.base import HEADINGS, NEEDS, OTHERWISE, Card, Names, Rule, all_cards
from unhang.rules.registry import all_rules, judge
from unhang.testing import Fires, Quiet

from .cases import load_examples


def examples(kind: type[Fires] | type[Quiet]) -> list[tuple[str, Rule, Any]]:
    """All examples of a kind, each with its name and rule."""
    return [
        (f"{rule.id}-{i}", rule, example)
        for rule in all_rules()
        for i, example in enumerate(load_examples().get(rule.id, ()))
        if isinstance(example, kind)
    ]


def _said(rule: Rule, diagnosis: Diagnosis) -> tuple[Finding, ...]:
    return diagnosis.remarks if rule.names is Names.REMARK else diagnosis.findings


def wrong_alone(rule: Rule, example: Fires) -> list[str]:
    """What is wrong with what a rule says where it must speak."""
    found = _said(rule, judge(example.case, [rule]))
    if not found:
        return ["the rule says nothing"]
    first, wrong = found[0], []
    cause = example.cause or rule.cause
    if (first.cause, first.culprit_ranks) != (cause, example.culprits):
        wrong.append(f"names {first.cause} {first.culprit_ranks}, not {cause} {example.culprits}")
    if example.line is not None and (first.location is None or first.location.line != example.line):
        wrong.append(f"at {first.location}, not line {example.line}")
    for finding in found:
        if not finding.fixes:
            wrong.append(f"no fix of {finding.title!r}")
        for fix in finding.fixes:
            if fix.helps and not (fix.advice or fix.command or fix.setting):
                wrong.append(f"the fix {fix.title!r} says not what to change")
            if not fix.verify:
                wrong.append(f"the fix {fix.title!r} cannot be checked")
    return wrong


def test_a_rule_names_the_culprits_and_fixes_that_can_be_checked() -> None:
    wrong = {name: wrong_alone(rule, example) for name, rule, example in examples(Fires)}
    assert len(wrong) >= len(all_rules())
    assert {name: why for name, why in wrong.items() if why} == {}


def wrong_among_all(rule: Rule, example: Fires) -> list[str]:
    """What is wrong with the verdict of all rules together."""
    diagnosis = judge(example.case)
    wrong = [f"{o.rule} fails: {o.reason}" for o in diagnosis.outcomes if o.verdict == "error"]
    if rule.names is Names.REMARK:
        accused = [f"{f.rule} accuses somebody" for f in diagnosis.findings if f.cause != "unknown"]
        return wrong + accused + ([] if any(f.rule == rule.id for f in diagnosis.remarks) else ["it makes no remark"])
    if not diagnosis.findings or diagnosis.findings[0].rule != rule.id:
        wrong.append(f"the first is not its own: {[f.rule for f in diagnosis.findings]}")
    wrong += [
        f"{f.rule} is a consequence of {f.consequence_of}" for f in diagnosis.findings[1:] if f.consequence_of != "F1"
    ]
    return wrong


def test_among_all_rules_its_finding_is_the_first() -> None:
    wrong = {name: wrong_among_all(rule, example) for name, rule, example in examples(Fires)}
    assert {name: why for name, why in wrong.items() if why} == {}


_IN_CODE = {"shared-file": {"path", "rank"}}  # braces of the advice itself


def test_no_word_of_a_card_is_left_open() -> None:
    shown = {
        rule.id: " ".join(
            [f.title, f.because, *(part for fix in f.fixes for part in (fix.title, fix.advice, fix.command))]
        )
        for _, rule, example in examples(Fires)
        for f in judge(example.case, [rule]).findings
    }
    left = {rule: set(re.findall(r"\{([a-z_]+)\}", text)) - _IN_CODE.get(rule, set()) for rule, text in shown.items()}
    assert {rule: words for rule, words in left.items() if words} == {}


def spoken(rule: Rule, example: Quiet) -> str:
    """What a rule says where it must be silent, and which lines make that job one in trouble."""
    found = _said(rule, judge(example.case, [rule]))
    if not found:
        return ""
    proving = sorted({f"{e.kind} ({e.says})" for e in example.case.events if e.says})
    because = f"; in its table these prove trouble by themselves: {', '.join(proving)}" if proving else ""
    return f"must be silent on {example.why!r}, and says {found[0].title!r}{because}"


def test_a_rule_is_silent() -> None:
    said = {name: spoken(rule, example) for name, rule, example in examples(Quiet)}
    assert {name: wrong for name, wrong in said.items() if wrong} == {}


def lopsided(card: Card) -> set[str]:
    """The variants of which a card knows the title and not the reason, or the other way round."""
    named = [texts.keys() for texts in (card.title, card.because) if OTHERWISE not in texts]
    return {v for names in named for texts in (card.title, card.because) for v in texts.keys() - {OTHERWISE} - names}


def unexplained(rule: Rule) -> list[str]:
    """What a rule does not say of itself."""
    card, cases = rule.card, load_examples().get(rule.id, ())
    wrong = [heading for heading in HEADINGS.values() if not card.sections.get(heading)]
    wrong += [f"what it says as {v!r} has no title or no reason" for v in lopsided(card)]
    if card.cause not in CAUSES:
        wrong.append(f"no such cause: {card.cause}")
    wrong += [f"no such evidence: {need}" for need in rule.needs if need not in NEEDS]
    if not any(isinstance(e, Fires) for e in cases):
        wrong.append("no case in which it speaks")
    if not any(isinstance(e, Quiet) for e in cases):
        wrong.append("no healthy counter-example")
    quiet = list(dict.fromkeys(e.why for e in cases if isinstance(e, Quiet)))
    if quiet != list(card.silent):
        wrong.append(f"write on its card what its Quiet cases say: silent = {json.dumps(quiet, ensure_ascii=False)}")
    return wrong


def test_every_card_and_every_case_belongs_to_a_rule() -> None:
    places = {
        "a function with @rule": {rule.id for rule in all_rules()},
        "a card in src/unhang/rules/cards": all_cards().keys(),
        "cases in tests/rules/cases": load_examples().keys(),
    }
    lacks = {id_: [what for what, ids in places.items() if id_ not in ids] for id_ in set().union(*places.values())}
    assert {id_: what for id_, what in lacks.items() if what} == {}


def test_a_rule_explains_itself() -> None:
    assert {rule.id: why for rule in all_rules() if (why := unexplained(rule))} == {}


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in all_rules()]
    assert len(ids) == len(set(ids))
