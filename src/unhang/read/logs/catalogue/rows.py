"""The rows of the catalogue, read from its tables; a template becomes an expression and the literal text by which it is found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent
BULK = FOLDER / "bulk"
SEARCHED = FOLDER / "searched.tsv"
# The higher a layer stands here, the nearer it is to what went wrong: what happens below comes out above.
LAYERS = (
    "kernel",
    "driver",
    "device",
    "transport",
    "nccl",
    "c10d",
    "store",
    "scheduler",
    "launcher",
    "framework",
    "user",
)
ROLES = ("root", "witness", "echo", "notice")
NO_CAUSE = "-"
_HOLES = {"%s": ".{0,300}?", "%d": r"[-+]?\d[\d.]*", "%x": r"(?:0x)?[0-9A-Fa-f]+", "%%": "%"}
_HOLE = re.compile(r"%[sdx%]")
_ALTERNATIVE, _FIX = "= ", "-> "


class Row(NamedTuple):
    """One message of an emitter.

    Args:
        emitter: the program or library that prints it.
        layer: where that stands, one of `LAYERS`.
        role: one of `ROLES`: "root" where the line says itself what went wrong, "witness" that something did, "echo" only that
            a peer, the network or the store went away, "notice" else.
        cause: the cause that the line establishes whatever else is in the log; "" for most.
        versions: of the emitter, `2.12-`, `-2.9` or `2.3-2.9`; "" where it is not known.
        templates: the message as it is printed, with %s for a text, %d for a number, %x for a hexadecimal one; other wordings follow.
        meaning: in words of ours; "" where the message says it itself.
        fix: what to do first; "" where it depends.
        is_raised: it is the text of an exception, which is read without being searched for.
    """

    emitter: str
    layer: str
    role: str
    cause: str
    versions: str
    templates: tuple[str, ...]
    meaning: str = ""
    fix: str = ""
    is_raised: bool = False

    @property
    def kind(self) -> str:
        """The kind of its events."""
        return f"catalogue.{self.emitter}"


def read_rows(text: str) -> Iterator[Row]:
    """The rows of one table.

    `@ emitter layer [raised]` holds for the rows that follow. A row is `role cause versions template`; what is indented
    belongs to it: `= another wording`, `-> the fix`, and else its meaning. `#` begins a comment.
    """
    emitter = layer = ""
    is_raised = False
    head: list[str] = []
    templates: list[str] = []
    meaning = fix = ""
    for line in text.splitlines():
        first = line[:1]
        if first == " ":
            more = line.strip()
            if more.startswith(_ALTERNATIVE):
                templates.append(more[2:])
            elif more.startswith(_FIX):
                fix = more[3:]
            else:
                meaning = f"{meaning} {more}" if meaning else more
            continue
        if head:
            yield _row(emitter, layer, head, templates, meaning, fix, is_raised)
            head = []
        if first == "@":
            emitter, layer, *rest = line[1:].split()
            is_raised = rest == ["raised"]
        elif first and first != "#":
            head = line.split(None, 3)
            templates, meaning, fix = [head[3]], "", ""
    if head:
        yield _row(emitter, layer, head, templates, meaning, fix, is_raised)


def _row(
    emitter: str,
    layer: str,
    head: Sequence[str],
    templates: Sequence[str],
    meaning: str,
    fix: str,
    is_raised: bool,
) -> Row:
    role, cause, versions, _ = head
    return Row(
        emitter,
        layer,
        role,
        "" if cause == NO_CAUSE else cause,
        "" if versions == NO_CAUSE else versions,
        tuple(templates),
        meaning,
        fix,
        is_raised,
    )


@cache
def weighed_rows() -> tuple[Row, ...]:
    """The rows that were weighed one by one: all that have a cause are among them."""
    return _tables(FOLDER)


@cache
def bulk_rows() -> tuple[Row, ...]:
    """The other messages that emitters can print: emitter, layer and role only."""
    return _tables(BULK)


def _tables(folder: Path) -> tuple[Row, ...]:
    paths = sorted(folder.glob("*.rows"))
    return tuple(row for path in paths for row in read_rows(path.read_text(encoding="utf-8")))


@cache
def speaking_rows() -> tuple[Row, ...]:
    """The rows that establish a cause."""
    return tuple(row for row in weighed_rows() if row.cause)


@cache
def searched_rows() -> tuple[tuple[Row, tuple[str, ...]], ...]:
    """The rows that a search of logs looks for, each with its literal texts: those that establish a cause and are not read anyway."""
    texts: dict[str, list[str]] = {}
    for line in SEARCHED.read_text(encoding="utf-8").splitlines():
        anchor, _, template = line.partition("\t")
        texts.setdefault(template, []).append(anchor)
    found = ((row, tuple(dict.fromkeys(a for t in row.templates for a in texts.get(t, ())))) for row in speaking_rows())
    return tuple((row, anchors) for row, anchors in found if anchors)


def literals(template: str) -> list[str]:
    """The literal parts of a template."""
    return [part for raw in _HOLE.split(template.replace("%%", "%s")) if (part := raw.strip())]


def example_of(template: str, word: str = "some-1") -> str:
    """A line with this message."""
    return template.replace("%s", word).replace("%d", "7").replace("%x", "0x7f").replace("%%", "%")


def anchor_of(template: str) -> str:
    """The literal text by which a template is found: its longest."""
    return max(literals(template), key=len, default="")


def regex_of(template: str) -> str:
    """The expression that a line with this message matches; a word at its beginning or its end is a whole one."""
    text = template.strip()
    begin = r"(?<!\w)" if text[:1].isalnum() else ""
    end = r"(?!\w)" if text[-1:].isalnum() and not _HOLE.fullmatch(text[-2:]) else ""
    found, at = [], 0
    for hole in _HOLE.finditer(text):
        found += [re.escape(text[at : hole.start()]), _HOLES[hole[0]]]
        at = hole.end()
    return begin + "".join([*found, re.escape(text[at:])]) + end


def row_regex(row: Row) -> str:
    """The expression of all wordings of a row."""
    texts = [regex_of(template) for template in row.templates]
    return texts[0] if len(texts) == 1 else "|".join(f"(?:{text})" for text in texts)
