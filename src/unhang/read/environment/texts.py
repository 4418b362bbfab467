"""Variables in shell scripts, job scripts, Dockerfiles and files of NAME=VALUE lines, in configurations, and in logs. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from unhang.read.environment import MAX_VALUE, Assignment, Launch, Settings, in_scope, unquoted

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
    """The variables of a configuration file, those of shell commands in it among them: in JSON text is data and no command."""
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
            yield _written(match["name"], match["value"], number)
    if named := _NAMED.match(line):
        if in_scope(named["name"]) and (value := _value_below(lines, number)) is not None:
            yield _written(named["name"], value[1], value[0])
        return
    plain = _LISTED.match(line) or _MAPPED.match(line)
    if plain is not None and in_scope(plain["name"]) and not _INLINE.search(line):
        yield _written(plain["name"], plain["value"], number)


def _value_below(lines: list[str], number: int) -> tuple[int, str] | None:
    """(line, text) of the value that belongs to a name; None where it comes from elsewhere (valueFrom)."""
    for i in range(number, min(number + LOOK_AHEAD, len(lines))):
        if _NAMED.match(lines[i]):
            return None
        if match := _VALUE_LINE.match(_plain(lines[i])):
            return i + 1, match["value"] or ""
    return None


def _written(name: str, raw: str | None, number: int) -> Assignment:
    value = unquoted((raw or "").strip())[:MAX_VALUE]
    if _COMPUTED.search(value):
        return Assignment(name, None, number, expression=value[:200])
    return Assignment(name, value, number)


_NCCL = re.compile(
    r"(?:(?<![\w.\-])(?P<host>[\w.\-]+):\d+:\d+ \[-?\d+\] )?NCCL INFO (?P<name>NCCL_\w+) set (?:by environment )?to (?P<value>.*?)\.?\s*$"
)
_TRACE = re.compile(r"^\s*\+{1,4} (?:export |declare -x )?(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>.*)$")
_PRINTED = re.compile(
    r"^(?:\[?(?:rank)?\d+\]?:? )?\s*(?:export |declare -x )?(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>[^\s=]\S*|\"[^\"]*\"|)\s*$"
)
MAX_FOUND = 5000


def read_log(text: str, path: str = "") -> Settings:
    """The variables that a log shows. The same variable with the same value is kept once, where it was first seen."""
    seen: set[tuple[str, str | None]] = set()
    found: list[Assignment] = []
    for assignment in _found(text):
        key = (assignment.name, assignment.value)
        if key not in seen and len(found) < MAX_FOUND:
            seen.add(key)
            found.append(assignment)
    return Settings(path, "log", tuple(found))


def _found(text: str) -> Iterator[Assignment]:
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r")[: 1 << 14]
        if "=" not in line and " set " not in line:
            continue
        match = _NCCL.search(line) or _TRACE.match(line) or _PRINTED.match(line)
        if match is None or not in_scope(match["name"]):
            continue
        host = match.groupdict().get("host") or ""
        yield Assignment(match["name"], unquoted(match["value"])[:MAX_VALUE], number, reported_by=host)
