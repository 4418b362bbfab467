"""Variables in shell scripts, job scripts, Dockerfiles and files of NAME=VALUE lines. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from unhang.read.environment.settings import MAX_VALUE, Assignment, Launch, Settings, unquoted
from unhang.read.environment.tables import in_scope

_ASSIGNED = re.compile(
    r"(?<![\w$.{/\-\]])(?P<name>[A-Za-z_]\w*)\+?=(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|\$\(\([^)]*\)\)|\$\([^)]*\)|\$\{[^}]*\}[^\s;&|)]*|[^\s;&|)<>`]*)"
)
_SET_BY_WORD = re.compile(r"^\s*(?:setenv|set\s+-\w*x\w*|ENV)\s+(?P<name>[A-Za-z_]\w*)\s+(?P<value>[^=\s].*)$")
_FILLED = re.compile(r"^\s*:\s+[\"']?\$\{(?P<name>[A-Za-z_]\w*):?=(?P<value>[^${}]*)\}")
_UNSET = re.compile(r"(?:^|[;&|]\s*|\bdo\s+|\bthen\s+)\s*unset\s+(?:-v\s+)?(?P<names>[\w ]+)")
_MENTION = re.compile(r"\$\{?([A-Za-z_]\w*)")
_DEFAULT = re.compile(r"\$\{\w+:?[-=](?P<value>[^${}]*)\}")
_SAYS = re.compile(r"^\s*(?:echo|printf|logger|log|info|print|warn|usage)\b(?![^#]*>)")
_DIRECTIVE = re.compile(r"^#(?:SBATCH|PBS|BSUB|MSUB|COBALT|\$)(?=\s)")
_JOINED_LIST = re.compile(r"(?:--export[= ]|-v )(\S+)")
_LAUNCHER = re.compile(
    r"(?P<program>\btorchrun\b(?!\.)|torch\.distributed\.(?:run|launch)\b|\baccelerate\s+launch\b)(?P<rest>.*)",
    re.DOTALL,
)
_OPTION = re.compile(r"--(?P<name>[A-Za-z][\w-]*)(?:(?:=|\s+)(?P<value>(?!-)(?:\"[^\"]*\"|'[^']*'|[^\s\"']+)))?")
_SCRIPT = re.compile(r"\s[^\s=]+\.py\b|\s-m\s|\s--module\s|\s(?:bash|sh|python3?)\s")
_OPENED = re.compile(r"^\s*(?:export\s+)?\w+=(?P<mark>[\"(])")
_PLAIN = re.compile(
    r"^\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>\"[^\"]*\"|'[^']*'|\([^()]*\)|[^\s;&|()]*)\s*(?:;.*)?$"
)
_USED = re.compile(r"[\"]?\$(?:\{(?P<braced>\w+)(?:\[@\])?\}|(?P<name>\w+))[\"]?")
MAX_LINES, MAX_OPEN = 200_000, 60


def read_shell(text: str, path: str = "") -> Settings:
    """The variables of a script, and the command lines of launchers in it."""
    assignments: list[Assignment] = []
    mentions: set[str] = set()
    known: dict[str, str | None] = {}
    launches: list[Launch] = []
    for number, line in _logical_lines(text):
        if _SAYS.match(line) or line.lstrip().startswith("ARG "):
            continue
        for match in _UNSET.finditer(line):
            gone = set(match["names"].split())
            assignments = [a for a in assignments if a.name not in gone]
        found = list(assignments_in(line, number))
        assignments.extend(found)
        mentions |= _used(line, {a.name for a in found})
        _remember(line, known)
        if launch := _launch(_filled(line, known), number):
            launches.append(launch)
    return Settings(path, "shell", tuple(assignments), frozenset(mentions), tuple(launches))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, line) with continued lines joined and comments cut off; directives of schedulers count."""
    first, parts = 0, ""
    for number, raw in enumerate(text.split("\n", MAX_LINES)[:MAX_LINES], 1):
        line = raw.rstrip("\r")
        if directive := _DIRECTIVE.match(line):
            line = line[directive.end() :]
        line = _without_comment(line)
        first = first or number
        if (parts or _OPENED.match(line)) and not _closed(parts + line) and number - first < MAX_OPEN:
            parts += line.removesuffix("\\") + " "
            continue
        if line.endswith("\\") and len(parts) < 1 << 16:
            parts += line[:-1] + " "
            continue
        yield first, parts + line
        first, parts = 0, ""
    if parts:
        yield first, parts


def _without_comment(line: str) -> str:
    """The line up to a `#` that begins a word outside quotes."""
    if "#" not in line:
        return line
    quote = ""
    for i, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#" and (i == 0 or line[i - 1].isspace()):
            return line[:i]
    return line


def assignments_in(line: str, number: int) -> Iterator[Assignment]:
    """The assignments of one line."""
    line = _JOINED_LIST.sub(lambda m: " " + m[1].replace(",", " "), line)
    if (match := _FILLED.match(line)) and in_scope(match["name"]):
        yield Assignment(match["name"], unquoted(match["value"])[:MAX_VALUE], number, is_default=True)
        return
    if match := _SET_BY_WORD.match(line):
        if in_scope(match["name"]):
            yield _assignment(match["name"], match["value"], number)
        return
    for match in _ASSIGNED.finditer(line):
        name, value = match["name"], match["value"]
        if not in_scope(name) or (value.startswith("=") and not name.endswith(("IFNAME", "HCA"))):
            continue
        yield _assignment(name, value, number)


def _assignment(name: str, raw: str, number: int) -> Assignment:
    value = unquoted(raw)[:MAX_VALUE]
    if ("$" not in value and "`" not in value) or raw.startswith("'"):
        return Assignment(name, value, number)
    default = _DEFAULT.fullmatch(value)
    if default is not None:
        return Assignment(name, unquoted(default["value"]), number, is_default=name in _MENTION.findall(value))
    return Assignment(name, None, number, expression=value)


def _used(line: str, assigned: set[str]) -> set[str]:
    """Names whose value the line uses for something else than to set them again."""
    names = {n for n in _MENTION.findall(line) if in_scope(n)}
    return {n for n in names if n not in assigned or len(re.findall(rf"\$\{{?{n}\b", line)) > 1}


def _closed(text: str) -> bool:
    """Whether the value that the text begins is at its end; a text that begins none is."""
    opened = _OPENED.match(text)
    return opened is None or (")" in text if opened["mark"] == "(" else text.count('"') % 2 == 0)


def _remember(line: str, known: dict[str, str | None]) -> None:
    """Notes values of the script's own variables; one that is set twice is not known."""
    for match in _PLAIN.finditer(line):
        name, value = match["name"], _filled(unquoted(match["value"].strip("()")), known)
        known[name] = value[:MAX_VALUE] if known.get(name, value) == value else None


def _filled(line: str, known: Mapping[str, str | None]) -> str:
    """The line with the values of known variables, `${NAMES[@]}` among them."""

    def value(match: re.Match[str]) -> str:
        found = known.get(match["braced"] or match["name"])
        return match[0] if found is None else found

    return _USED.sub(value, line)[: 1 << 16]


def _launch(line: str, number: int) -> Launch | None:
    match = _LAUNCHER.search(line)
    if match is None:
        return None
    rest = match["rest"]
    script = _SCRIPT.search(rest)
    options = launcher_options(rest[: script.start()] if script else rest)
    return Launch(" ".join(match["program"].split()), options, number)


def launcher_options(text: str) -> Mapping[str, str]:
    """The options of a command line; a flag has the value "". Underscores count as dashes, as torchrun takes both."""
    return {m["name"].replace("_", "-"): unquoted(m["value"] or "") for m in _OPTION.finditer(text)}
