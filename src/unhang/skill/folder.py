"""Makes the skill's files and writes them as a folder that agents read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from unhang import __version__
from unhang.errors import CannotWrite, UnhangError
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
    judge = f"- Judge: `{command_for(rule, available)}`"
    return ["", f"## {rule.id}", "", f"{docs.summary} {cause}", "", *parts, judge]


NAME = "unhang"
MAIN = "SKILL.md"
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_ONLY_WITH = re.compile(r"^\{\{(\w+):(.*)\}\}\n", re.MULTILINE)
_DIGEST = re.compile(r'^  digest: "([^"]*)"$', re.MULTILINE)
_OURS = re.compile(r"^  written-by: unhang$", re.MULTILINE)


class FolderInTheWay(UnhangError):
    """The target exists, and was not written by us, or was changed since."""

    help_text = "move it away, or overwrite it with --force"


def skill_files(commands: Mapping[str, str]) -> dict[str, str]:
    """Path within the folder -> text. `commands`: the commands that there are, and what each does."""
    template = resources.files(__package__).joinpath(MAIN).read_text(encoding="utf-8")
    template = _ONLY_WITH.sub(lambda m: f"{m[2]}\n" if m[1] in commands else "", template)
    table = ["| command | |", "|---|---|", *(f"| `unhang {n}` | {h} |" for n, h in commands.items())]
    slots = {"version": __version__, "commands": "\n".join(table), "tree": short_tree(), "advice": advice_short()}
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


# Checks a skill against the format of agentskills.io: front matter, names, limits, and links.

KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
MAX_NAME, MAX_DESCRIPTION, MAX_COMPATIBILITY = 64, 1024, 500
MAX_BODY_LINES = 500
MAX_BYTES = 1 << 20

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_ENTRY = re.compile(r"(?P<key>[A-Za-z][\w.-]*):(?:\s+(?P<value>.*?))?\s*")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = (">", ">-", ">+", "|", "|-", "|+")

Value = str | dict[str, str] | list[str]


class _Malformed(Exception):
    """The front matter is not what the format allows."""


def validate(folder: Path) -> list[str]:
    """What is wrong with a skill; nothing if it is right."""
    main = folder / MAIN
    try:
        if main.stat().st_size > MAX_BYTES:
            return [f"{MAIN} is larger than {MAX_BYTES} bytes"]
        text = main.read_text(encoding="utf-8").replace("\r\n", "\n")
    except OSError as error:
        return [f"{MAIN} cannot be read: {error.strerror}"]
    except UnicodeDecodeError:
        return [f"{MAIN} is not UTF-8"]
    try:
        front, body = split(text)
        values = front_matter(front)
    except _Malformed as error:
        return [str(error)]
    return [*_wrong_values(values, folder.resolve().name), *_wrong_body(body), *_wrong_links(folder, body)]


def split(text: str) -> tuple[list[str], str]:
    """The lines of the front matter, and the body after it."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise _Malformed(f"{MAIN} does not begin with a line '---'")
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise _Malformed("the front matter has no end: a second line '---' is missing")
    return lines[1:end], "\n".join(lines[end + 1 :])


def front_matter(lines: list[str]) -> dict[str, Value]:
    """The YAML that front matters use: plain, quoted and folded texts, one level of keys, lists of texts."""
    found: dict[str, Value] = {}
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise _Malformed(f"the front matter has a line that is no 'key: value': {line.strip()[:80]!r}")
        if entry["key"] in found:
            raise _Malformed(f"the front matter has the key {entry['key']!r} twice")
        nested = []
        while index < len(lines) and (not lines[index].strip() or lines[index][0] in " \t"):
            nested.append(lines[index])
            index += 1
        found[entry["key"]] = _value(entry["key"], entry["value"] or "", [n for n in nested if n.strip()])
    return found


def _value(key: str, text: str, nested: list[str]) -> Value:
    if text in _BLOCK:
        return (" " if text[0] == ">" else "\n").join(n.strip() for n in nested)
    if not nested:
        return _scalar(key, text)
    if text:
        return _scalar(key, " ".join([text, *(n.strip() for n in nested)]))
    if all(n.lstrip().startswith("- ") for n in nested):
        return [_scalar(key, n.strip()[2:].strip()) for n in nested]
    inner: dict[str, str] = {}
    for line in nested:
        entry = _ENTRY.fullmatch(line.strip())
        if entry is None:
            raise _Malformed(f"{key} has a line that is no 'key: value': {line.strip()[:80]!r}")
        inner[entry["key"]] = _scalar(entry["key"], entry["value"] or "")
    return inner


def _scalar(key: str, text: str) -> str:
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            raise _Malformed(f"{key} has a quote without its end")
        return text[1:-1]
    if ": " in text or text.endswith(":") or text[:1] in ("[", "{", "&", "*", "!", "%", "@", "`"):
        raise _Malformed(f"{key} has a text that YAML reads otherwise; put it in quotes: {text[:60]!r}")
    return text


def _wrong_values(values: dict[str, Value], folder_name: str) -> Iterator[str]:
    for key in values:
        if key not in KEYS:
            yield f"the front matter has the unknown key {key!r}; allowed are {', '.join(KEYS)}"
    name = values.get("name", "")
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not _NAME.fullmatch(name):
        yield f"name has to be 1 to {MAX_NAME} characters a-z, 0-9 and single hyphens inside: {str(name)[:80]!r}"
    elif name != folder_name:
        yield f"name is {name!r}, but the folder is {folder_name!r}"
    yield from _wrong_text(values, "description", MAX_DESCRIPTION, is_required=True)
    yield from _wrong_text(values, "compatibility", MAX_COMPATIBILITY)
    yield from _wrong_text(values, "license", MAX_DESCRIPTION)
    if not isinstance(values.get("metadata", {}), dict):
        yield "metadata has to be a map of texts"
    if isinstance(values.get("allowed-tools", ""), dict):
        yield "allowed-tools has to be a text or a list of texts"


def _wrong_text(values: dict[str, Value], key: str, most: int, is_required: bool = False) -> Iterator[str]:
    if key not in values:
        if is_required:
            yield f"{key} is missing"
        return
    value = values[key]
    if not isinstance(value, str) or not value.strip():
        yield f"{key} has to be a text that is not empty"
    elif len(value) > most:
        yield f"{key} has {len(value)} characters; {most} are allowed"


def _wrong_body(body: str) -> Iterator[str]:
    if not body.strip():
        yield "there is no text after the front matter"
    count = len(body.strip("\n").split("\n"))
    if count >= MAX_BODY_LINES:
        yield f"the text has {count} lines; it should have fewer than {MAX_BODY_LINES}: move parts into references/"


def _wrong_links(folder: Path, body: str) -> Iterator[str]:
    root = folder.resolve()
    for link in dict.fromkeys(_LINK.findall(body)):
        target = link.partition("#")[0]
        if not target or re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
            continue
        path = (root / target).resolve()
        if target.startswith("/") or not path.is_relative_to(root):
            yield f"the link {link} leads out of the skill"
        elif not path.exists():
            yield f"the link {link} leads to nothing"
