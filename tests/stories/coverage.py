"""The table of what the stories ask for: its rows, and what each answers."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("coverage.toml")
VERDICTS = ("works", "truth", "open")
ADVICE_VERDICTS = {
    "OK": "right",
    "PART": "right in part",
    "OLD": "dated",
    "NOOP": "without effect",
    "HARM": "harmful",
    "UNSUP": "not supported",
}


@dataclass(frozen=True)
class Row:
    """One thing asked for. `test`: file::name, or file::* where several tests of a file hold it; `open`: what is missing."""

    id: str
    asked: str
    verdict: str
    command: str
    test: str
    shows: tuple[str, ...] = ()
    code: int = 0
    whole: bool = False
    open: str = ""


@dataclass(frozen=True)
class AdviceRow:
    """One thing that a story says. `told`: what is true of it; `by`: what answers it (`explain WORD`, `rule ID`, `lint CODE`, `row ID`)."""

    id: str
    said: str
    told: str
    by: str


@cache
def rows() -> tuple[tuple[str, tuple[Row, ...]], ...]:
    """The rows of each story, below its title."""
    found: dict[str, list[Row]] = {}
    titles: dict[str, str] = {}
    for name, fields in tomllib.loads(TABLE.read_text())["rows"].items():
        if "title" in fields:
            titles[name] = fields["title"]
            continue
        found.setdefault(name.partition(".")[0], []).append(
            Row(name, **{**fields, "shows": tuple(fields.get("shows", ()))})
        )
    return tuple((titles[story], tuple(of_it)) for story, of_it in found.items())


def all_rows() -> tuple[Row, ...]:
    """All rows, in order."""
    return tuple(row for _, of_it in rows() for row in of_it)


@cache
def advice_rows() -> tuple[AdviceRow, ...]:
    """All rows of advice, in order."""
    table = tomllib.loads(TABLE.read_text()).get("advice", {})
    return tuple(AdviceRow(name, *fields) for name, fields in table.items())
