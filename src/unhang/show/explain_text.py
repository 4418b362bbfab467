"""What `unhang explain` says, as text and as JSON: of a rule every sentence from its card, of a message what the catalogue says."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unhang.model import CAUSES, LogEvent
from unhang.read.logs.catalogue import PROGRAM, Emitter, Row
from unhang.rules.base import HEADINGS, Rule
from unhang.rules.decision_tree import (
    FIRST,
    Answer,
    Question,
    command_for,
    explanation,
    leaves,
    questions_in_order,
    rules_of,
    section_of,
    walk,
    without_rule,
)
from unhang.show.paper import printable, room

SCHEMA = "unhang.explain/1"
MAX_QUOTE = 300
_PROVES = {
    "hang": "a wait went beyond its limit, here or on another rank",
    "crash": "a process failed",
}


@dataclass(frozen=True)
class KnownLine:
    """Lines in a log that say the same. `kinds`: what they say; several where one line says several things.

    `printed_by`: which program prints it. `leads_to`: rules that speak on such a line alone. `weighed_by`: rules that use it
    together with other evidence. `message`: what the catalogue says of the first of them.
    """

    kinds: tuple[str, ...]
    first: LogEvent
    fields: Mapping[str, str]
    proves: str
    count: int
    printed_by: str
    leads_to: tuple[Rule, ...]
    weighed_by: tuple[Rule, ...] = ()
    message: Message | None = None


@dataclass(frozen=True)
class KnownVariable:
    """An environment variable, `NAME` or `NAME=value`, and where a file sets it.

    `facts`: what the tables say of it; `against`: what is wrong with its value or its use there.
    """

    name: str
    facts: Mapping[str, str]
    lines: tuple[tuple[int, str], ...] = ()
    against: tuple[str, ...] = ()


@dataclass(frozen=True)
class KnownAdvice:
    """Advice or an option that a document names. `lines`: where; `truth`: what it does, in short."""

    name: str
    lines: tuple[int, ...]
    truth: str


@dataclass(frozen=True)
class Lines:
    """A text, explained. `together`: the rules that all lines together lead to, the root cause first; `advice`: of a document."""

    path: str
    line_count: int
    known: tuple[KnownLine, ...]
    variables: tuple[KnownVariable, ...] = ()
    together: tuple[tuple[Rule, str], ...] = ()
    advice: tuple[KnownAdvice, ...] = ()


def _indented(text: str) -> list[str]:
    return textwrap.indent(text, "  ").splitlines()


def _one_line(rule: Rule) -> str:
    return f"{rule.id}: {explanation(rule).summary}"


def rule_text(rule: Rule, available: Collection[str]) -> str:
    """All that a rule says of itself."""
    docs = explanation(rule)
    out = [f"{docs.id}  [cause {docs.cause}: {CAUSES[docs.cause]}]", "", docs.summary]
    for heading in HEADINGS.values():
        if heading in docs.sections:
            out += ["", heading, *_indented(docs.sections[heading])]
    if rule.card.silent:
        out += ["", "It says nothing about", *(f"  - {why}" for why in rule.card.silent)]
    out += ["", "To check for it", f"  {command_for(rule, available)}"]
    others = [other for other in rules_of(rule.cause) if other.id != rule.id]
    if others:
        out += ["", "Other rules of this cause", *(f"  {_one_line(other)}" for other in others)]
    return "\n".join(out) + "\n"


def rule_json(rule: Rule, available: Collection[str]) -> dict[str, Any]:
    """The same for programs."""
    docs = explanation(rule)
    return {
        "rule": docs.id,
        "cause": docs.cause,
        "summary": docs.summary,
        **{heading.lower().replace(" ", "_"): docs.sections.get(heading, "") for heading in HEADINGS.values()},
        "silent_on": rule.card.silent,
        "lines": rule.card.lines,
        "command": command_for(rule, available),
    }


def messages_text(fragment: str, messages: Sequence[Message]) -> str:
    """The messages that a fragment may be a part of."""
    out = [f"Messages that contain {printable(fragment, most=MAX_QUOTE)!r}; the whole line says more."]
    for message in messages:
        out += ["", printable(message.row.templates[0] if message.row else "", most=MAX_QUOTE), *message_text(message)]
    return "\n".join(out) + "\n"


def cause_text(cause: str, available: Collection[str]) -> str:
    """A cause, and the rules that establish it."""
    rules = rules_of(cause)
    section = section_of(cause)
    out = [f"{cause}: {CAUSES[cause]}", f"  one of: {section.letter}. {section.title}"]
    if not rules:
        out += ["", "No rule establishes it yet."]
    for rule in rules:
        docs = explanation(rule)
        confirm = docs.sections.get("How to confirm", "")
        out += ["", f"{rule.id}: {docs.summary}", "  How to confirm", *_indented(textwrap.indent(confirm, "  "))]
        out += ["  How to fix", *_indented(textwrap.indent(docs.sections.get("How to fix", ""), "  "))]
        out += [f"  To check for it: {command_for(rule, available)}"]
    if rules:
        out += ["", f"All of it: unhang explain {rules[0].id}"]
    return "\n".join(out) + "\n"


def cause_json(cause: str, available: Collection[str]) -> dict[str, Any]:
    """The same for programs."""
    section = section_of(cause)
    return {
        "cause": cause,
        "meaning": CAUSES[cause],
        "section": {"letter": section.letter, "title": section.title},
        "rules": [rule_json(rule, available) for rule in rules_of(cause)],
    }


def variable_text(variable: KnownVariable) -> str:
    """An environment variable."""
    facts = dict(variable.facts) or {"meaning": "no library reads a variable of this name"}
    width = max(len(name) for name in facts)
    out = [printable(variable.name)]
    for name, fact in facts.items():
        out += textwrap.wrap(
            printable(fact), room(), initial_indent=f"  {name.ljust(width)}  ", subsequent_indent=" " * (width + 4)
        )
    for number, text in variable.lines:
        out += [f"  {f'line {number}: ' if number else ''}{printable(text.strip(), most=MAX_QUOTE)}"]
    out += [f"  wrong: {printable(text)}" for text in variable.against]
    return "\n".join(out) + "\n"


def variable_json(variable: KnownVariable) -> dict[str, Any]:
    """The same for programs."""
    lines = [{"line": number, "text": text} for number, text in variable.lines]
    return {"variable": variable.name, **variable.facts, "lines": lines, "against": variable.against}


def _known_text(known: KnownLine) -> list[str]:
    times = "once, at" if known.count == 1 else f"{known.count} times, first at"
    fields = {**({"rank": str(known.first.rank)} if known.first.rank is not None else {}), **known.fields}
    fields_shown = ", ".join(f"{name} {printable(v.strip(), most=80)}" for name, v in fields.items() if v.strip())
    out = [f"{', '.join(known.kinds) or 'a message'}  ({times} line {known.first.source.line})"]
    out += [f"  | {printable(known.first.text.strip(), most=MAX_QUOTE)}"]
    out += message_text(known.message) if known.message else []
    out += [f"  printed by  {known.printed_by}"] if known.printed_by else []
    out += [f"  it reports  {fields_shown}"] if fields_shown else []
    out += [f"  it proves   {_PROVES[known.proves]}"] if known.proves in _PROVES else []
    names_cause = known.message is not None and known.message.row is not None and known.message.row.cause
    if not names_cause and all(rule.cause == "unknown" for rule in known.leads_to):
        out += ["  by itself it names no cause"]
    out += [f"  leads to    {_one_line(rule)}" for rule in known.leads_to]
    if known.weighed_by:
        out += [f"  weighed by  {', '.join(rule.id for rule in known.weighed_by)}"]
    return out


def lines_text(lines: Lines) -> str:
    """Every known line of a text, and where it leads."""
    found = f"known lines of {len(lines.known)} kinds"
    if lines.variables:
        found = f"{found}, " if lines.known else ""
        found += f"variables that are known: {len(lines.variables)}"
    out = [f"{lines.path}: {lines.line_count} lines, {found}"] if lines.line_count > 1 else []
    for known in lines.known:
        out += ["", *_known_text(known)]
    for variable in lines.variables:
        out += ["", *variable_text(variable).splitlines()]
    if lines.advice:
        out += ["", "Advice and options in it, and what is true of each"]
    for advice in lines.advice:
        where = f"line {', '.join(map(str, advice.lines[:3]))}"
        truth = textwrap.fill(f"  {advice.truth}", room(108) - 2, subsequent_indent="  ")
        out += [f"  {advice.name} ({where})", *_indented(truth)]
    alone = [rule for known in lines.known for rule in known.leads_to]
    together = [rule for rule, _ in lines.together]
    if together and (lines.line_count > 1 or set(together) - set(alone)):
        out += ["", "Taken together" if lines.line_count > 1 else "As the first failure of a job"]
        out += [f"  {rule.id}: {printable(title)}" for rule, title in lines.together]
    if together or alone:
        out += ["", f"More: unhang explain {(together or alone)[0].id}"]
    return "\n".join(out).lstrip("\n") + "\n"


def lines_json(lines: Lines) -> dict[str, Any]:
    """The same for programs."""
    return {
        "path": lines.path,
        "line_count": lines.line_count,
        "known": [
            {
                "kinds": k.kinds,
                "count": k.count,
                "line": k.first.source.line,
                "text": k.first.text.strip()[:MAX_QUOTE],
                "rank": k.first.rank,
                "fields": dict(k.fields),
                "proves": k.proves,
                "printed_by": k.printed_by,
                "leads_to": [rule.id for rule in k.leads_to],
                "weighed_by": [rule.id for rule in k.weighed_by],
                "message": message_json(k.message) if k.message else None,
            }
            for k in lines.known
        ],
        "variables": [variable_json(variable) for variable in lines.variables],
        "together": [{"rule": rule.id, "title": title} for rule, title in lines.together],
        "advice": [{"advice": a.name, "lines": a.lines, "truth": a.truth} for a in lines.advice],
    }


def leaf_text(question: Question, answer: Answer, available: Collection[str]) -> str:
    """What the user is told at the end of a branch: the rules, how to confirm each, what to type."""
    rules = leaves(question, answer)
    out: list[str] = []
    for rule in rules:
        confirm = " ".join(explanation(rule).sections.get("How to confirm", "").split())
        out += [
            *([""] if out else []),
            _one_line(rule),
            *textwrap.wrap(confirm, room(100), initial_indent="  confirm: ", subsequent_indent="           "),
            f"  judge:   {command_for(rule, available)}",
            f"  more:    unhang explain {rule.id}",
        ]
    out += [f"{cause}: {CAUSES[cause]} (no rule judges it yet)" for cause in without_rule(answer)]
    return "\n".join(out) + "\n"


def tree_text() -> str:
    """The whole tree: every question once, its answers with the next question or the rules."""
    numbers = {question.id: number for number, question in enumerate(questions_in_order(), 1)}
    out: list[str] = []
    for question in questions_in_order():
        out += ["", f"{numbers[question.id]}. {question.text}"]
        if question.hint:
            out += textwrap.wrap(f"{question.hint})", room(100), initial_indent="   (", subsequent_indent="    ")
        for answer in question.answers:
            out += [f"   - {answer.text}" + (f"  -> question {numbers[answer.then]}" if answer.then else "")]
            out += [f"       {_one_line(rule)}" for rule in leaves(question, answer)]
            out += [f"       {cause}: {CAUSES[cause]} (no rule yet)" for cause in without_rule(answer)]
    ways = "A rule in full: unhang explain RULE. The evidence: unhang run -- COMMAND..., or unhang diagnose PATH..."
    out += ["", ways]
    return "\n".join(out).lstrip("\n") + "\n"


def tree_json(available: Collection[str]) -> dict[str, Any]:
    """The tree for programs: questions by id, the first one named, and every rule that a leaf names."""
    found: dict[str, Rule] = {rule.id: rule for q, a in walk() for rule in leaves(q, a)}
    return {
        "first": FIRST,
        "questions": {
            question.id: {
                "text": question.text,
                "hint": question.hint,
                "answers": [_answer_json(question, answer) for answer in question.answers],
            }
            for question in questions_in_order()
        },
        "rules": {rule_id: rule_json(found[rule_id], available) for rule_id in sorted(found)},
    }


def _answer_json(question: Question, answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "then": answer.then or None,
        "rules": [rule.id for rule in leaves(question, answer)],
        "causes_without_rule": without_rule(answer),
    }


def question_text(question: Question) -> str:
    """A question with numbered answers."""
    hint = textwrap.wrap(question.hint, room(100), initial_indent="  ", subsequent_indent="  ")
    answers = [f"  {number:>2}  {answer.text}" for number, answer in enumerate(question.answers, 1)]
    return "\n".join(["", question.text, *hint, *answers])


_ROLES = {
    "root": "it says itself what went wrong",
    "witness": "something went wrong; another line says why",
    "echo": "only that a peer, the network or the store went away: look for what came before",
    "notice": "it reports no fault",
}


@dataclass(frozen=True)
class Message:
    """A line in the catalogue: its row, None where no row knows it, and who prints such lines."""

    row: Row | None
    emitter: Emitter

    @property
    def is_known(self) -> bool:
        """Whether the catalogue tells more of it than any line has."""
        return self.row is not None or self.emitter.name not in (PROGRAM.name, "logger")


def message_text(message: Message) -> list[str]:
    """Its lines, each with the name of what it tells."""
    row = message.row
    if row is None:
        emitter = message.emitter
        return [f"  emitter     {emitter.name} (layer: {emitter.layer}); the message itself is not in the catalogue"]
    since = f", versions {row.versions}" if row.versions else ""
    facts = [
        ("emitter", f"{row.emitter} (layer: {row.layer}){since}"),
        ("role", f"{row.role}: {_ROLES[row.role]}"),
        ("it means", row.meaning),
        ("cause", f"{row.cause}: {CAUSES[row.cause]}" if row.cause else ""),
        ("do first", row.fix),
    ]
    lines: list[str] = []
    for name, fact in facts:
        lines += textwrap.wrap(printable(fact), room(), initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
    return lines


def message_json(message: Message) -> dict[str, Any]:
    """The same for programs."""
    row = message.row
    if row is None:
        return {"emitter": message.emitter.name, "layer": message.emitter.layer}
    return {
        "emitter": row.emitter,
        "layer": row.layer,
        "role": row.role,
        "cause": row.cause or None,
        "versions": row.versions or None,
        "template": row.templates[0],
        "meaning": row.meaning or None,
        "fix": row.fix or None,
    }
