"""Real lines, each with the kind of line that it is, or is not: `kind :: line` and `not kind :: line` in `lines/*.log`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "lines"


class Line(NamedTuple):
    """A line, and whether it is of the kind."""

    kind: str
    text: str
    is_of_kind: bool = True


def lines(folder: str = "") -> list[Line]:
    """All lines of logs; of exceptions and of a machine's kernel are those in `exceptions` and `machine`."""
    paths = sorted((FOLDER / folder).glob("*.log"))
    return [_line(text) for path in paths for text in path.read_text(encoding="utf-8").splitlines() if text]


def _line(text: str) -> Line:
    head, _, line = text.partition(" :: ")
    return Line(head.removeprefix("not ").strip(), line, not head.startswith("not "))


def examples() -> dict[str, list[str]]:
    """Lines of each kind."""
    found: dict[str, list[str]] = {}
    for line in lines():
        if line.is_of_kind:
            found.setdefault(line.kind, []).append(line.text)
    return found
