"""What is known of a word, and by whom: a rule, a cause, a variable, advice, a line of a log, a whole file."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unhang.diagnosis import judge_case
from unhang.errors import NothingToJudge, UnreadableInput, WrongUsage
from unhang.lint.cards import code_of
from unhang.lint.report import card_json, card_text
from unhang.model import CAUSES, Case, Fix, LogEvent, RaisedError, grouped
from unhang.read.environment import Settings
from unhang.read.logs import all_patterns
from unhang.read.logs.case import case_of_outputs, log_case
from unhang.read.logs.catalogue import best_cause, emitter_of, whole
from unhang.read.output_log import OutputLog, parse_output
from unhang.rules.base import Rule
from unhang.rules.decision_tree import Explanation, explanation, rules_by_id
from unhang.rules.known_repairs import of_error
from unhang.rules.registry import all_rules
from unhang.show import explain_text as show
from unhang.show.explain_text import KnownAdvice, KnownLine, KnownVariable, Lines, Message
from unhang.show.paper import printable
from unhang.skill.advice import (
    ADVICE,
    advice_in,
    advice_json,
    advice_on,
    advice_text,
    in_short,
    topics_json,
    topics_on,
    topics_text,
)

MAX_KINDS = 200
_SCRIPTS = {".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".pbs", ".lsf", ".env", ".py", ".yaml", ".yml", ".toml"}
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Interrupt|Exit): ")
_MOST_WEIGHERS = 6
_CATALOGUE = "catalogue."
_LEAST_FRAGMENT, _MOST_MESSAGES = 8, 5


class UnknownWord(WrongUsage):
    """The argument is no rule, cause, variable, file, or known line."""

    def __init__(self, word: str, nearest: Sequence[str]) -> None:
        no_file = ", and there is no such file" if Path(word).suffix or "/" in word else ""
        super().__init__(f"nothing is known by the name '{printable(word, most=80)}'{no_file}")
        self.help_text = (
            f"did you mean {', '.join(nearest)}?" if nearest else "'unhang explain' leads from symptoms to rules"
        )


class NoText(UnreadableInput):
    """A folder, or a file that holds no text."""

    help_text = "'unhang diagnose PATH...' judges dumps, bundles and logs"


class NoKnownLine(NothingToJudge):
    """A text in which no line is known."""

    help_text = "'unhang diagnose PATH...' judges dumps, bundles and logs together"


def explained(word: str, commands: Sequence[str]) -> tuple[str, str, Mapping[str, Any]]:
    """What is known of a word: its kind, the text, and the same for programs.

    Raises:
        UnknownWord: it is nothing that is known.
        NoKnownLine: it is a text, and no line of it is known.
        UnreadableInput: it is a file that is neither a log nor a script.
    """
    name = word.lower().replace("_", "-").replace(" ", "-")
    if name in rules_by_id():
        rule = rules_by_id()[name]
        return "rule", show.rule_text(rule, commands), show.rule_json(rule, commands)
    if name in CAUSES:
        return "cause", show.cause_text(name, commands), show.cause_json(name, commands)
    code, advice = code_of(word), advice_on(word)
    if code is not None and (advice is None or code == word.upper()):
        return "lint rule", card_text(code), card_json(code)
    variable = variable_in(word)
    if variable is not None:
        return "variable", show.variable_text(variable), show.variable_json(variable)
    if advice is not None:
        found = f"\nFound in code\n  unhang lint, {code}: unhang explain {code}\n" if code else ""
        return "advice", advice_text(advice) + found, advice_json(advice) | ({"lint_rule": code} if code else {})
    try:
        lines = _lines_of(word)
    except (UnknownWord, NoKnownLine):
        is_name = " " not in word.strip() and bool(nearest(word))
        if not is_name and (messages := messages_with(word)):
            return "messages", show.messages_text(word, messages), {"messages": [*map(show.message_json, messages)]}
        if is_name or os.path.exists(word) or word == "-" or not (topics := topics_on(word)):
            raise
        return "topics", topics_text(topics), topics_json(topics)
    remedy, fields = _remedy_of(word), show.lines_json(lines)
    if remedy is None:
        return "lines", show.lines_text(lines), fields
    told = "\n".join(f"  {line}" for line in (remedy.title, *remedy.change.splitlines()))
    return (
        "lines",
        f"{show.lines_text(lines)}\nWhat mends it\n{told}\n",
        fields | {"remedy": {"title": remedy.title, **remedy.changes}},
    )


def _remedy_of(word: str) -> Fix | None:
    """What mends an exception that is given as one line, `RuntimeError: ...`, where that is established."""
    found = _EXCEPTION.search(word)
    if found is None or "\n" in word.strip():
        return None
    kind, _, message = word[found.start() :].partition(": ")
    return of_error(RaisedError(kind, message, 0, ()), None)


def _lines_of(word: str) -> Lines:
    """The known lines of a file, of stdin, or of the word itself."""
    if word == "-":
        lines = explained_output(parse_output(sys.stdin.buffer.read(), "stdin"), "stdin")
    elif os.path.exists(word):  # not Path.exists, which raises where a name is too long
        return explained_file(Path(word))
    else:
        lines = explained_output(parse_output(word.encode("utf-8", "surrogateescape"), ""), "")
        if not lines.known and not lines.together and " " not in word:
            raise UnknownWord(word, nearest(word))
    if not (lines.known or lines.together or lines.variables or lines.advice):
        raise NoKnownLine("no line of it is known")
    return lines


def explained_file(path: Path) -> Lines:
    """The known lines of a log; the variables of a launch script.

    Raises:
        UnreadableInput: it is another kind of file.
        NoKnownLine: nothing of it is known.
    """
    from unhang.read.environment.sources import read_source
    from unhang.read.logs.source import read_output
    from unhang.read.sniff import Kind, kind_of

    if path.is_dir():
        raise NoText(f"{path} is a folder")
    kind = kind_of(path)
    if kind in (Kind.OUTPUT, Kind.OTHER) and (document := _explained_document(path)) is not None:
        return document
    if kind is not Kind.OUTPUT:
        raise NoText(f"{path} is neither a log nor a script ({kind.value})")
    output = read_output(path)
    is_script = _is_script(path, output)
    settings = Lines(str(path), _line_count(output), (), tuple(variables_of(read_source(path)) if is_script else ()))
    lines = settings if is_script else explained_output(output, str(path))
    if not lines.known and not lines.together and not lines.variables:
        raise NoKnownLine(f"{path}: no line of it is known")
    return lines


def _explained_document(path: Path) -> Lines | None:
    """A text that people write: what is pasted into it, the variables that it sets, the advice that it gives; None for anything else."""
    from unhang.read.environment.sources import parts_of_document
    from unhang.read.files import regular_size
    from unhang.read.logs.decode import MAX_BYTES, is_document

    if not 0 < regular_size(path) <= MAX_BYTES:
        return None
    data = path.read_bytes()
    lines = data.decode("utf-8", "replace").splitlines()
    if b"\0" in data or not is_document(lines, path.name):
        return None
    printed = explained_output(parse_output(data, str(path)), str(path))
    settings = parts_of_document("\n".join(lines), str(path))
    advice = tuple(
        KnownAdvice(name, tuple(numbers), in_short(ADVICE[name])) for name, numbers in advice_in(lines).items()
    )
    return replace(printed, line_count=len(lines), variables=tuple(variables_of(*settings)), advice=advice)


def _is_script(path: Path, output: OutputLog) -> bool:
    first = output.lines[0].text if output.lines else ""
    return path.suffix.lower() in _SCRIPTS or path.name.startswith("Dockerfile") or first.startswith("#!")


def _line_count(output: OutputLog) -> int:
    return len(output.lines) + output.omitted_lines


def explained_output(output: OutputLog, path: str) -> Lines:
    """Every kind of known line in a log, and what all lines together lead to."""
    case = case_of_outputs([output])
    judged = judge_case(case).diagnosis
    alone = not judged.findings and _line_count(output) == 1
    if alone:
        judged = judge_case(_as_exception(output.lines[0].text)).diagnosis
    roots = [f for f in judged.findings if f.consequence_of is None]
    together = tuple((rule := rules_by_id()[f.rule], explanation(rule).summary if alone else f.title) for f in roots)
    known = tuple(known_lines(case))
    if not known and len(output.lines) == 1 and (only := message_of(output.lines[0].text)).is_known:
        first = LogEvent("", output.lines[0].text, output.lines[0].source, 0, output.lines[0].rank)
        known = (KnownLine((), first, {}, "", 1, "", (), (), only),)
    return Lines(path, _line_count(output), known, (), together)


def messages_with(fragment: str) -> tuple[Message, ...]:
    """The messages of the catalogue that contain a fragment, those first of which more is known; none for a fragment that says little."""
    wanted = " ".join(fragment.lower().split())
    if len(wanted) < _LEAST_FRAGMENT or "\n" in fragment.strip():
        return ()
    found = {
        row: None
        for rows in whole().anchors.values()
        for row in rows
        if any(wanted in t.lower() for t in row.templates)
    }
    known = sorted(found, key=lambda row: (not row.cause, not row.meaning, len(row.templates[0])))
    return tuple(Message(row, emitter_of(row.templates[0])) for row in known[:_MOST_MESSAGES])


def message_of(line: str) -> Message:
    """What the catalogue knows of a line: the row by which a diagnosis names its cause, else its most special one, or only who prints such lines."""
    row = best_cause(line) or next(iter(whole().rows_of(line)), None)
    return Message(row, emitter_of(line))


def _as_exception(line: str) -> Case:
    """The case in which a line such as `RuntimeError: ...` ended the traceback of a rank; an empty one for any other line."""
    found = _EXCEPTION.search(line)
    if found is None:
        return log_case("")
    head = ("Traceback (most recent call last):", '  File "train.py", line 1, in main', "    step()")
    return log_case("".join(f"[rank0]: {text}\n" for text in (*head, line[found.start() :])))


def known_lines(case: Case) -> Iterator[KnownLine]:
    """The events of a case, those that begin with the same line together, with the rules that they lead to."""
    kinds = grouped((event.kind, event) for event in case.events)
    groups = grouped((events[0].order, kind) for kind, events in list(kinds.items())[:MAX_KINDS])
    for names in groups.values():
        first = [kinds[name][0] for name in names]
        leads = _rules_led_to(first[0].text)
        weighed = tuple(rule for rule in _weighers(names) if rule not in leads)
        fields = {key: value for event in first for key, value in event.fields.items()}
        proves = next((event.says for event in first if event.says), "")
        count = len({event.order for name in names for event in kinds[name]})
        named, message = tuple(name for name in names if not name.startswith(_CATALOGUE)), message_of(first[0].text)
        yield KnownLine(
            named, first[0], fields, proves, count, _printer(names), leads, weighed, message if message.row else None
        )


def _rules_led_to(line: str) -> tuple[Rule, ...]:
    """The rules that speak when there is nothing but this line."""
    findings = judge_case(log_case(line)).diagnosis.findings
    return tuple(rules_by_id()[f.rule] for f in findings if f.consequence_of is None)


def _weighers(kinds: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that wait for such lines, or in whose examples they are; none for lines that nearly every job prints."""
    found: dict[Rule, None] = {}
    for kind in kinds:
        of_kind = [rule for rule in all_rules() if kind in rule.card.lines]
        if len(of_kind) <= _MOST_WEIGHERS:
            found |= dict.fromkeys(of_kind)
    return tuple(found)


def _printer(kinds: Sequence[str]) -> str:
    """Which program prints such lines: the first sentence of the table that knows the last, most special kind."""
    return next((pattern.table for pattern in all_patterns() if pattern.kind == kinds[-1]), "")


def variable_facts(name: str) -> dict[str, str] | None:
    """What is known of an environment variable, by the names of the facts; None for a name that is not known."""
    from unhang.read.environment import beliefs, variables, whose_variable

    if name in variables():
        v = variables()[name]
        meaning = v.meaning or "a real variable; its meaning is not described here"
        since = {"since": v.since, "until": v.until, "now": v.now}
        takes = {"takes": v.accepts, "default": v.default} if v.meaning else {}
        return {k: fact for k, fact in {"meaning": meaning, "library": v.library, **takes, **since}.items() if fact}
    if name in beliefs():
        belief = beliefs()[name]
        return {"meaning": f"no library reads it; meant is {belief.meant}", "instead": belief.instead}
    whose = whose_variable(name)
    return {"meaning": whose} if whose else None


def variable_in(word: str) -> KnownVariable | None:
    """A variable that the tables know, or the judged setting `NAME=value` of one."""
    from unhang.read.environment.texts import read_shell

    name, equals, _ = word.partition("=")
    facts = variable_facts(name.strip())
    if facts is None:
        return None
    against: tuple[str, ...] = ()
    if equals and "\n" not in word:
        against = tuple(fact for variable in variables_of(read_shell(word)) for fact in variable.against)
    return KnownVariable(word.strip(), facts, (), against)


def variables_of(*sources: Settings) -> Iterator[KnownVariable]:
    """The variables that sources set, with what there is to say against each. Only settings are told: the rest may be secret."""
    from unhang.read.environment import in_scope
    from unhang.rules.env import judge_settings, shown

    by_name = grouped(
        (assignment.name, assignment)
        for assignment in (a for source in sources for a in source.assignments)
        if in_scope(assignment.name)
    )
    findings = judge_settings(sources).findings
    for name, found in by_name.items():
        against = tuple(f.title for f in findings if any(e.text.startswith(f"{name}=") for e in f.evidence))
        lines = tuple((a.line or 0, shown(a)) for a in found)
        yield KnownVariable(name, variable_facts(name) or {}, lines, against)


def nearest(word: str) -> tuple[str, ...]:
    """The names that a word may have meant: spelt alike, or with the word in their name or summary."""
    from unhang.read.environment import variables

    names = [*rules_by_id(), *CAUSES, *ADVICE]
    alike = difflib.get_close_matches(word.lower().replace("_", "-"), names, 3, 0.6)
    if _VARIABLE.fullmatch(word.partition("=")[0]):
        alike += difflib.get_close_matches(word.partition("=")[0], list(variables()), 3, 0.75)
    inside = [name for name in names if len(word) > 2 and word.lower() in name]
    said = [r for r, rule in rules_by_id().items() if len(word) > 3 and word.lower() in _all_text(explanation(rule))]
    return tuple(dict.fromkeys([*alike, *inside, *said]))[:4]


def _all_text(docs: Explanation) -> str:
    return " ".join([docs.summary, *docs.sections.values()]).lower()
