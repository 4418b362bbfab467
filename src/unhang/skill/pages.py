"""The decision tree and the rules as Markdown, for the documentation and for the skill."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from unhang.model import CAUSES
from unhang.rules.base import Rule
from unhang.rules.decision_tree import (
    QUESTIONS,
    SECTIONS,
    Answer,
    Question,
    command_for,
    explanation,
    leaves,
    questions_in_order,
    rules_of,
    without_rule,
)

Link = Callable[[str], str]
_NOT_DRAWN = "all"  # its answers are the sections, which hold every rule once more


def _confirm(rule: Rule) -> str:
    return " ".join(explanation(rule).sections.get("How to confirm", "").split())


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")


def _node(question_id: str) -> str:
    return question_id.replace("-", "_")


def diagram() -> str:
    """The tree as a mermaid flowchart: questions, and one box for the rules of each answer."""
    lines = ["```mermaid", "flowchart LR"]
    lines += [f'  {_node(question.id)}{{{{"{_quoted(question.text)}"}}}}' for question in questions_in_order()]
    for question in questions_in_order():
        for number, answer in enumerate(question.answers, 1):
            arrow = f'  {_node(question.id)} -->|"{_quoted(answer.text)}"| '
            if answer.then:
                lines.append(arrow + _node(answer.then))
            elif question.id != _NOT_DRAWN:
                names = [rule.id for rule in leaves(question, answer)] + list(without_rule(answer))
                lines.append(arrow + f'{_node(question.id)}_{number}["{"<br/>".join(names)}"]')
    return "\n".join([*lines, "```"])


def _answer(question: Question, answer: Answer, link: Link, available: Collection[str]) -> list[str]:
    if answer.then:
        target = QUESTIONS[answer.then]
        return [f"- {answer.text} → [{target.text}](#{anchor(target.text)})"]
    out = [f"- {answer.text}"]
    for rule in leaves(question, answer):
        out += [f"  - [{rule.id}]({link(rule.id)}): {explanation(rule).summary}"]
        if question.id != _NOT_DRAWN:
            out += [f"    - confirm: {_confirm(rule)}", f"    - judge: `{command_for(rule, available)}`"]
    return out + [f"  - {cause}: {CAUSES[cause]} (no rule judges it yet)" for cause in without_rule(answer)]


def anchor(heading: str) -> str:
    """The anchor that a heading gets on GitHub and in most renderers."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def tree_page(link: Link, available: Collection[str], is_drawn: bool = True) -> str:
    """The whole tree as a page. `link`: where a rule is explained."""
    out = [
        "# Decision tree",
        "",
        "From what you see to the rules that may explain it. `unhang explain` walks it in a terminal. Written from the rules.",
        "",
        "When a job stops says little about why: data can stop it at the start, and a cable at any step. So most branches lead",
        f'to one question, "{QUESTIONS["ranks"].text}", which `unhang run` and `unhang diagnose` answer from evidence.',
    ]
    if is_drawn:
        out += ["", diagram()]
    for question in questions_in_order():
        out += ["", f"## {question.text}", ""]
        out += [question.hint, ""] if question.hint else []
        for answer in question.answers:
            out += _answer(question, answer, link, available)
    return "\n".join(out) + "\n"


def short_tree() -> str:
    """The tree in as few words as possible: the ids of rules and causes."""
    numbers = {question.id: number for number, question in enumerate(_short_questions(), 1)}
    out = []
    for question in _short_questions():
        out.append(f"{numbers[question.id]}. **{question.text}**" + (f" ({question.hint})" if question.hint else ""))
        for answer in question.answers:
            if answer.then in numbers:
                out.append(f"   - {answer.text} → {numbers[answer.then]}")
            elif answer.then:
                out.append(f"   - {answer.text} → [all causes](references/decision-tree.md)")
            else:
                out.append(f"   - {answer.text} → {', '.join(f'`{name}`' for name in (*answer.rules, *answer.causes))}")
    return "\n".join(out)


def _short_questions() -> Sequence[Question]:
    return [question for question in questions_in_order() if question.id != _NOT_DRAWN]


def rules_page(available: Collection[str]) -> str:
    """Every rule, with what an agent needs of it, under the sections of the causes."""
    out = ["# Rules", "", "What each rule of `unhang` says of itself, by cause. Written from the rules."]
    for section in SECTIONS:
        out += ["", f"# {section.letter}. {section.title}"]
        for cause in section.causes:
            out += [] if rules_of(cause) else ["", f"**{cause}**: {CAUSES[cause]} (no rule judges it yet)"]
            for rule in rules_of(cause):
                out += _rule(rule, available)
    return "\n".join(out) + "\n"


def _rule(rule: Rule, available: Collection[str]) -> list[str]:
    told = explanation(rule)
    parts = [
        f"- {heading}: {' '.join(told.sections[heading].split())}"
        for heading in ("What it detects", "Why it hangs", "How to confirm", "How to fix")
        if heading in told.sections
    ]
    cause = f"Cause `{rule.cause}`: {CAUSES[rule.cause]}."
    return [
        "",
        f"## {rule.id}",
        "",
        f"{told.summary} {cause}",
        "",
        *parts,
        f"- Judge: `{command_for(rule, available)}`",
    ]
