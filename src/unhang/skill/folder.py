"""Makes the skill's files and writes them as a folder that agents read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path

from unhang import __version__
from unhang.errors import UnhangError
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
from unhang.skill.advice import advice_page, advice_short

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
    docs = explanation(rule)
    parts = [
        f"- {heading}: {' '.join(docs.sections[heading].split())}"
        for heading in ("What it detects", "Why it hangs", "How to confirm", "How to fix")
        if heading in docs.sections
    ]
    cause = f"Cause `{rule.cause}`: {CAUSES[rule.cause]}."
    return [
        "",
        f"## {rule.id}",
        "",
        f"{docs.summary} {cause}",
        "",
        *parts,
        f"- Judge: `{command_for(rule, available)}`",
    ]


NAME = "unhang"
MAIN = "SKILL.md"
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_ONLY_WITH = re.compile(r"^\{\{(\w+):(.*)\}\}\n", re.MULTILINE)
_DIGEST = re.compile(r'^  digest: "([^"]*)"$', re.MULTILINE)
_OURS = re.compile(r"^  written-by: unhang$", re.MULTILINE)


class FolderInTheWay(UnhangError):
    """The target exists, and was not written by us, or was changed since."""

    help_text = "move it away, or overwrite it with --force"


class CannotWrite(UnhangError):
    """The folder cannot be written."""


def skill_files(commands: Mapping[str, str]) -> dict[str, str]:
    """Path within the folder -> text. `commands`: the commands that there are, and what each does."""
    template = resources.files(__package__).joinpath(MAIN).read_text(encoding="utf-8")
    template = _ONLY_WITH.sub(lambda m: f"{m[2]}\n" if m[1] in commands else "", template)
    slots = {
        "version": __version__,
        "commands": "\n".join(
            ["| command | |", "|---|---|", *(f"| `unhang {n}` | {h} |" for n, h in commands.items())]
        ),
        "tree": short_tree(),
        "advice": advice_short(),
    }
    files = {
        MAIN: _SLOT.sub(lambda m: slots.get(m[1], m[0]), template),
        "references/decision-tree.md": tree_page(lambda rule: f"rules.md#{rule}", commands, is_drawn=False),
        "references/rules.md": rules_page(commands),
        "references/advice.md": advice_page(),
        "references/report.md": resources.files(__package__).joinpath("report.md").read_text(encoding="utf-8"),
    }
    return {**files, MAIN: files[MAIN].replace("{{digest}}", _digest(files))}


def _digest(files: Mapping[str, str]) -> str:
    """A checksum of all files, that of itself left out."""
    blank = {name: _DIGEST.sub("", text) for name, text in files.items()}
    return hashlib.sha256("\0".join(f"{name}\0{blank[name]}" for name in sorted(blank)).encode()).hexdigest()[:16]


def default_target(here: Path) -> Path:
    """Where skills are looked for: `.claude/skills` in a folder that has `.claude`, else `skills`."""
    return here / ".claude" / "skills" if (here / ".claude").is_dir() else here / "skills"


def install(files: Mapping[str, str], target: Path, force: bool = False) -> Path:
    """Writes the skill to `target/unhang`, and returns that folder. An older version of ours is replaced.

    Raises:
        FolderInTheWay: the folder holds what we did not write, and `force` is not given.
        CannotWrite: the system refuses.
    """
    folder = target / NAME
    if not force:
        _refuse_foreign(folder, files)
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f".{path.name}.tmp")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
    except OSError as error:
        raise CannotWrite(f"{error.filename or folder}: {error.strerror}") from error
    return folder


def _refuse_foreign(folder: Path, files: Mapping[str, str]) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise FolderInTheWay(f"{folder} is not a folder")
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    if not there:
        return
    texts = {name: _text(folder / name) for name in sorted(there)}
    main = texts.get(MAIN, "")
    digest = _DIGEST.search(main)
    if not _OURS.search(main) or digest is None:
        raise FolderInTheWay(f"{folder} was not written by unhang")
    if foreign := sorted(there - set(files)):
        raise FolderInTheWay(f"{folder} holds files of others: {', '.join(foreign[:3])}")
    if digest[1] != _digest(texts):
        raise FolderInTheWay(f"{folder} was changed since unhang wrote it")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
