from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from unhang.model import CAUSES
from unhang.rules import decision_tree as tree
from unhang.rules.base import HEADINGS, Rule
from unhang.rules.decision_tree import FIRST, QUESTIONS, SECTIONS, Answer, Question
from unhang.rules.registry import all_rules
from unhang.skill.folder import anchor, diagram

ROOT = Path(__file__).parents[2]


def wrong_in(question: Question, answer: Answer) -> list[str]:
    """What is wrong with an answer of the tree."""
    led_to = tree.leaves(question, answer)
    ids = [rule.id for rule in led_to]
    checks = {
        "leads on, or to causes or rules": bool(answer.then) != bool(answer.causes or answer.rules),
        "its question exists": not answer.then or answer.then in QUESTIONS,
        "its causes exist": set(answer.causes) <= set(CAUSES),
        "its rules exist": set(answer.rules) <= set(tree.rules_by_id()),
        "no rule twice": len(ids) == len(set(ids)),
        "leads somewhere": bool(answer.then or led_to or tree.without_rule(answer)),
    }
    return [what for what, holds in checks.items() if not holds]


def test_every_answer_leads_somewhere() -> None:
    wrong = {(q.id, number): wrong_in(q, a) for q in QUESTIONS.values() for number, a in enumerate(q.answers, 1)}
    assert len(wrong) > len(QUESTIONS)
    assert {place: why for place, why in wrong.items() if why} == {}


def test_every_question_is_reached_and_none_leads_back() -> None:
    order = [question.id for question in tree.questions_in_order()]
    assert order[0] == FIRST
    assert sorted(order) == sorted(QUESTIONS)

    def depth(question_id: str, above: tuple[str, ...]) -> int:
        assert question_id not in above, "the questions go round in a circle"
        below = [a.then for a in QUESTIONS[question_id].answers if a.then]
        return 1 + max((depth(b, (*above, question_id)) for b in below), default=0)

    assert depth(FIRST, ()) <= 6


def test_every_rule_and_every_cause_is_reached() -> None:
    reached = {rule.id for question, answer in tree.walk() for rule in tree.leaves(question, answer)}
    assert reached == {rule.id for rule in all_rules()}
    specific = {c for q, a in tree.walk() if q.id != "all" for c in a.causes}
    by_rule = {tree.rules_by_id()[r].cause for q, a in tree.walk() if q.id != "all" for r in a.rules}
    assert specific | by_rule == set(CAUSES), "a cause is reached only through the list of all"


def test_a_rule_that_is_written_later_is_reached_through_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Rule("a-new-rule", lambda s: None)
    known = tree.rules_of
    monkeypatch.setattr(tree, "rules_of", lambda cause: (*known(cause), *([new] if cause == "gpu-oom" else ())))
    places = {q.id for q, a in tree.walk() if any(rule.id == "a-new-rule" for rule in tree.leaves(q, a))}
    assert places == {"gone", "message", "all"}


def test_a_rule_with_an_answer_of_its_own_is_not_in_its_neighbours() -> None:
    question = QUESTIONS["disagree"]
    other_branch = next(a for a in question.answers if a.causes == ("code-divergence",))
    own = next(a for a in question.answers if "wrong-peer" in a.rules)
    assert "wrong-peer" in {rule.id for rule in tree.leaves(question, own)}
    assert "wrong-peer" not in {rule.id for rule in tree.leaves(question, other_branch)}
    assert "rank-dependent-collective" in {rule.id for rule in tree.leaves(question, other_branch)}


def test_the_sections_hold_every_cause_once() -> None:
    held = [cause for section in SECTIONS for cause in section.causes]
    assert sorted(held) == sorted(CAUSES)
    assert [section.letter for section in SECTIONS] == list("ABCDEF")
    assert all(cause in tree.section_of(cause).causes for cause in CAUSES)


def test_an_echo_never_leads_to_a_cause_but_to_the_ranks() -> None:
    answers = [a for q, a in tree.walk() if q.id != "all"]
    timeouts = [a for a in answers if "timeout" in a.text.lower() or "closed by peer" in a.text]
    assert [a.then for a in timeouts] == ["ranks"]


def test_questions_and_answers_can_be_read() -> None:
    for question in QUESTIONS.values():
        assert question.text.endswith("?")
        texts = [a.text for a in question.answers]
        assert len(texts) == len(set(texts))
        assert all(text.endswith(".") and len(text) <= 110 for text in texts)
    assert len({q.text for q in QUESTIONS.values()}) == len(QUESTIONS)


def missing_parts(rule: Rule) -> list[str]:
    """The parts of its docstring that a rule lacks."""
    told = tree.explanation(rule)
    missing = [heading for heading in HEADINGS.values() if not told.sections.get(heading)]
    if not told.summary.endswith((".", "!", "?")) or "\n" in told.summary:
        missing.append("a summary of one sentence")
    if not tree.command_for(rule, ("run", "diagnose")).startswith(("unhang run", "unhang diagnose")):
        missing.append("a command")
    return missing


def test_the_docstring_of_a_rule_falls_into_its_parts() -> None:
    assert {rule.id: missing for rule in all_rules() if (missing := missing_parts(rule))} == {}


def test_the_diagram_draws_every_question_and_only_known_nodes() -> None:
    lines = diagram().splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("```mermaid", "flowchart LR", "```")
    nodes = [match[1] for line in lines if (match := re.fullmatch(r'  (\w+)\{\{"[^"]+"\}\}', line))]
    assert nodes == [question.id.replace("-", "_") for question in tree.questions_in_order()]
    arrows = [re.fullmatch(r'  (\w+) -->\|"[^"|]+"\| (\w+)(\["[^"]+"\])?', line) for line in lines[2 + len(nodes) : -1]]
    assert arrows
    for arrow in arrows:
        assert arrow is not None
        assert arrow[1] in nodes
        assert arrow[3] or arrow[2] in nodes


def test_the_page_links_every_rule_and_is_the_same_twice() -> None:
    make = runpy.run_path(str(ROOT / "docs" / "make_tree.py"))["page"]
    page = make()
    assert page == make()
    for rule in all_rules():
        assert f"](rules/{rule.id}.md)" in page
    headings = {anchor(line[3:]) for line in page.splitlines() if line.startswith("## ")}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) == headings - {anchor(QUESTIONS[FIRST].text)}
