"""Variables that a log shows: NCCL's "set by environment", traces of the shell (`set -x`), and printed environments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from unhang.read.environment.settings import MAX_VALUE, Assignment, Settings, unquoted
from unhang.read.environment.tables import in_scope

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
