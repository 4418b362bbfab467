"""The catalogue: what each emitter can say, one message a row, as data; and how a line is found to be one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from unhang.read.logs.scan_engines import AnchorIndex

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
_NOTHING = "-"
_HOLES = {
    "%s": ".{0,300}?",
    "%d": r"[-+]?\d[\d.]*",
    "%x": r"(?:0x)?[0-9A-Fa-f]+",
    "%w": r"[A-Za-z_][\w.-]*",
    "%v": r"v?\d+\.\d+(?:\.\w+)+",
    "%%": "%",
}
_HOLE = re.compile(r"%[sdxwv%]")
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
        templates: the message as it is printed, with %s for a text, %d for a number, %x for a hexadecimal one, %w for a name, %v for a version
            of three parts; other wordings follow.
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
    row: Row | None = None
    for line in text.splitlines():
        first = line[:1]
        if first == " " and row is not None:
            more = line.strip()
            if more.startswith(_ALTERNATIVE):
                row = row._replace(templates=(*row.templates, more[2:]))
            elif more.startswith(_FIX):
                row = row._replace(fix=more[3:])
            else:
                row = row._replace(meaning=f"{row.meaning} {more}" if row.meaning else more)
            continue
        if row is not None:
            yield row
            row = None
        if first == "@":
            emitter, layer, *rest = line[1:].split()
            is_raised = rest == ["raised"]
        elif first and first != "#":
            role, *told, template = line.split(None, 3)
            cause, versions = ("" if word == _NOTHING else word for word in told)
            row = Row(emitter, layer, role, cause, versions, (template,), is_raised=is_raised)
    if row is not None:
        yield row


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
    return (
        template.replace("%s", word)
        .replace("%d", "7")
        .replace("%x", "0x7f")
        .replace("%w", "name")
        .replace("%v", "2.7.1")
        .replace("%%", "%")
    )


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


_MOST_CHARS = 4000
_MOST_TEXT_LINES = 12
_SURE = 6  # characters of literal text with which a line is a message, and not only alike


class Catalogue:
    """Some rows, and the index by which those of a line are found."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by_anchor: dict[str, list[Row]] = {}
        for row in rows:
            for template in row.templates:
                self._by_anchor.setdefault(anchor_of(template), []).append(row)
        self._index = AnchorIndex(self._by_anchor)

    @property
    def anchors(self) -> Mapping[str, Sequence[Row]]:
        """The literal texts, each with the rows to which it leads."""
        return self._by_anchor

    def rows_of(self, line: str) -> Sequence[Row]:
        """The rows that a line matches, the one with the most literal text first; of the same those that say more."""
        line = line[:_MOST_CHARS]
        found: dict[Row, int] = {}
        for anchor in dict.fromkeys(self._index.anchors_in(line)):
            for row in self._by_anchor[anchor]:
                if row not in found and (match := compiled(row).search(line)) is not None:
                    found[row] = _weight(row, match, line)
        return sorted((row for row, weight in found.items() if weight >= _SURE), key=lambda row: -found[row])


@cache
def compiled(row: Row) -> re.Pattern[str]:
    """The expression of a row, ready to search."""
    return re.compile(row_regex(row))


def _weight(row: Row, match: re.Match[str], line: str) -> int:
    """How much literal text of a row stands in a line."""
    parts = [literals(template) for template in row.templates]
    most = max((sum(map(len, p)) for p in parts if all(part in line for part in p)), default=len(match[0]))
    return 2 * most + bool(row.cause or row.meaning)


@cache
def weighed() -> Catalogue:
    """The rows that were weighed one by one."""
    return Catalogue(weighed_rows())


@cache
def whole() -> Catalogue:
    """All rows. To read them takes some tens of milliseconds."""
    return Catalogue((*weighed_rows(), *bulk_rows()))


@lru_cache(maxsize=4096)
def best_cause(text: str) -> Row | None:
    """The row that establishes the cause of a message; none where a more special row of the same line establishes nothing.

    Of a text of several lines, such as that of an exception, the first line that has a row with a cause.
    """
    for line in text.splitlines()[:_MOST_TEXT_LINES]:
        rows = weighed().rows_of(line)
        if rows and rows[0].cause and rows[0].role == "root":
            return rows[0]
    return None


_MOST_CHARS_OF_EMITTER = 2000
_TABLE = FOLDER / "emitters.tsv"


class Emitter(NamedTuple):
    """A program or library that prints lines, and the layer in which it stands."""

    name: str
    layer: str


PROGRAM = Emitter("the program itself", "user")


@cache
def _table() -> Sequence[tuple[Emitter, re.Pattern[str]]]:
    rows = (line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines())
    return [(Emitter(name, layer), re.compile(regex)) for name, layer, regex in rows]


def emitter_of(line: str) -> Emitter:
    """The emitter of a line; the program itself where nothing tells another one. The table's order decides among several."""
    head = line[:_MOST_CHARS_OF_EMITTER]
    return next((emitter for emitter, regex in _table() if regex.search(head)), PROGRAM)
