"""Checks a skill against the format of agentskills.io: front matter, names, limits, and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MAIN = "SKILL.md"
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
