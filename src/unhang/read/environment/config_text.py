"""Variables in YAML (Kubernetes, Compose, SkyPilot ...), JSON, TOML and INI, line by line: no parser, so nothing can be loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.read.environment.settings import MAX_VALUE, Assignment, Launch, Settings, unquoted
from unhang.read.environment.shell import read_shell
from unhang.read.environment.tables import in_scope

_FILLED_IN = r"\$\{[^}]*\}|\{\{[^}]*\}\}"
_VALUE = rf"(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|(?:{_FILLED_IN}|[^\s,#}}])(?:{_FILLED_IN}|[^,#}}])*?)?"
_NAMED = re.compile(r"^\s*(?:-\s*)?[\"']?name[\"']?\s*:\s*[\"']?(?P<name>[A-Z_][A-Z0-9_]*)[\"']?\s*,?\s*(?:#.*)?$")
_VALUE_LINE = re.compile(rf"^\s*[\"']?value[\"']?\s*:\s*{_VALUE}\s*,?\s*(?:#.*)?$")
_INLINE = re.compile(
    rf"\{{\s*[\"']?name[\"']?\s*:\s*[\"']?(?P<name>[A-Z_][A-Z0-9_]*)[\"']?\s*,\s*[\"']?value[\"']?\s*:\s*{_VALUE}\s*\}}"
)
_MAPPED = re.compile(rf"^\s*(?:-\s+)?[\"']?(?P<name>[A-Z_][A-Z0-9_]*)[\"']?\s*[:=]\s+{_VALUE}\s*,?\s*(?:#.*)?$")
_LISTED = re.compile(r"^\s*-\s*[\"']?(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>[^\"'#]*)[\"']?\s*(?:#.*)?$")
_SHELL = re.compile(r"\bexport\s+\w+=|\b[A-Z_][A-Z0-9_]*=\S|\btorchrun\b|torch\.distributed\.run|accelerate launch")
_COMPUTED = re.compile(r"\$[({\w]|\{\{")
_SPACES = re.compile(r"\s+")
LOOK_AHEAD, MAX_LINE = 4, 1 << 14


def read_config(text: str, path: str = "", form: str = "yaml") -> Settings:
    """The variables of a configuration file, those of shell commands in it among them."""
    lines = text.split("\n")
    assignments: list[Assignment] = []
    launches: list[Launch] = []
    mentions: set[str] = set()
    for number, raw in enumerate(lines, 1):
        line = _plain(raw)
        if line.lstrip().startswith(("#", "//")):
            continue
        found = list(_of_line(line, number, lines))
        if not found and form != "json" and _SHELL.search(line):
            inner = read_shell(_continued(lines, number), path)
            found = [Assignment(a.name, a.value, number, a.expression, a.is_default) for a in inner.assignments]
            launches += [Launch(x.program, x.options, number) for x in inner.launches]
        mentions |= {n for n in re.findall(r"\$[({]?(\w+)", line) if in_scope(n)} - {a.name for a in found}
        assignments.extend(found)
    return Settings(path, form, tuple(assignments), frozenset(mentions), tuple(launches))


def read_json_text(text: str, path: str = "") -> Settings:
    """The variables of a JSON file: names and values only, as text in it is data and no command."""
    return read_config(text, path, form="json")


def _plain(raw: str) -> str:
    """A line with single spaces, so that no pattern can be made to try them all."""
    return _SPACES.sub(" ", raw[:MAX_LINE]).rstrip()


def _continued(lines: list[str], number: int) -> str:
    """A line of a shell command with the lines that continue it."""
    last = number
    while last < len(lines) and lines[last - 1].rstrip().endswith("\\") and last - number < 50:
        last += 1
    return "\n".join(lines[number - 1 : last])


def _of_line(line: str, number: int, lines: list[str]) -> Iterator[Assignment]:
    for match in _INLINE.finditer(line):
        if in_scope(match["name"]):
            yield _assignment(match["name"], match["value"], number)
    if named := _NAMED.match(line):
        if in_scope(named["name"]) and (value := _value_below(lines, number)) is not None:
            yield _assignment(named["name"], value[1], value[0])
        return
    plain = _LISTED.match(line) or _MAPPED.match(line)
    if plain is not None and in_scope(plain["name"]) and not _INLINE.search(line):
        yield _assignment(plain["name"], plain["value"], number)


def _value_below(lines: list[str], number: int) -> tuple[int, str] | None:
    """(line, text) of the value that belongs to a name; None where it comes from elsewhere (valueFrom)."""
    for i in range(number, min(number + LOOK_AHEAD, len(lines))):
        if _NAMED.match(lines[i]):
            return None
        if match := _VALUE_LINE.match(_plain(lines[i])):
            return i + 1, match["value"] or ""
    return None


def _assignment(name: str, raw: str | None, number: int) -> Assignment:
    value = unquoted((raw or "").strip())[:MAX_VALUE]
    if _COMPUTED.search(value):
        return Assignment(name, None, number, expression=value[:200])
    return Assignment(name, value, number)
