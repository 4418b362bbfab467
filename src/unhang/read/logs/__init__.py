"""Logs of any program around a distributed job: their lines, and exceptions -> events, by the rows of the tables in `lines`, one for each program that prints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path

from unhang.model import LogEvent, LogLine, RaisedError, grouped
from unhang.read.logs.catalogue import row_regex, searched_rows
from unhang.read.logs.scan_engines import AnchorIndex, words_in_lines

FOLDER = Path(__file__).parent / "lines"
INDEX = FOLDER / "anchors.tsv"
_NOTHING, _BACKGROUND, _ANCHORS = "-", "background", "anchors: "


@dataclass(frozen=True, eq=False)
class Pattern:
    """One kind of line: a row of a table.

    Args:
        kind: `family.what`; several rows may have the same (the same line of another version).
        role: "root" where the line itself says what went wrong; "witness" where it says that something did, or that a wait ran
            out; "echo" where it only says that a peer, the network or the store went away; "notice" else.
        says: "hang" where such a line proves that a limit of a wait was hit, "crash" where a process failed; "" else.
        regex: searched in a line without its prefixes; a group `rank` is the global rank that the line is about.
        anchors: literal texts, one of which is in every line that the regex matches.
        emitter: the program that prints it.
        layer: where that program stands: user, framework, torch, transport, device, kernel or launcher.
        table: the first sentence of its table.
        is_background: such lines are many in every log, and matter only beside others: a search of a huge log does not look
            for them, but keeps some lines before each line that it finds.
    """

    kind: str
    role: str
    says: str
    regex: str
    anchors: tuple[str, ...]
    emitter: str = ""
    layer: str = ""
    table: str = ""
    is_background: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The expression, ready to search."""
        return re.compile(self.regex)


@cache
def all_patterns() -> tuple[Pattern, ...]:
    """The rows of all tables of logs, in the order of the files' names."""
    return tuple(row for path in sorted(FOLDER.glob("*.lines")) for row in table(path.stem))


@dataclass
class WrittenRow:
    """A row as it is written. `anchors`: those that it gives itself."""

    kind: str
    role: str
    says: str
    regex: str
    emitter: str
    layer: str
    anchors: tuple[str, ...] = ()


def written_rows(path: Path) -> tuple[str, list[WrittenRow]]:
    """The first sentence of a table, and its rows."""
    title, emitter, layer = "", "", ""
    rows: list[WrittenRow] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        mark = line[:1]
        if mark in ("", "#"):
            title = title or line[1:].strip().rstrip(".")
        elif mark == "@":
            _, emitter, layer = line.split()
        elif not mark.isspace():
            kind, role, says, regex = line.split(None, 3)
            rows.append(WrittenRow(kind, role, says, regex.rstrip(), emitter, layer))
        elif (more := line.strip()).startswith(_ANCHORS):
            rows[-1].anchors = tuple(more.removeprefix(_ANCHORS).replace("[ ]", " ").split(" | "))
        else:
            rows[-1].regex += more
    return title, rows


@cache
def table(name: str) -> tuple[Pattern, ...]:
    """The rows of one table, by its path in the folder: `nccl`, `machine/kernel`.

    A row is `kind role says regex`. A line that is indented goes on with the regex, or gives `anchors: ... | ...`; `@ emitter
    layer` holds for the rows that follow; `#` begins a comment, and the first one is the table's title. Spaces at the end of a
    line do not count: `[ ]` does.

    Raises:
        LookupError: the index lacks the anchors of a row that gives none.
    """
    title, rows = written_rows(FOLDER / f"{name}.lines")
    found = []
    for row in rows:
        proves = "" if row.says in (_NOTHING, _BACKGROUND) else row.says
        anchors = row.anchors or _index().get(key_of(row.regex))
        if anchors is None:
            raise LookupError(f"{INDEX.name} lacks {row.kind} of {name}.lines: run `make pages`")
        is_background = row.says == _BACKGROUND
        found.append(
            Pattern(row.kind, row.role, proves, row.regex, anchors, row.emitter, row.layer, title, is_background)
        )
    return tuple(found)


def key_of(regex: str) -> str:
    """Under which the index holds the anchors of an expression."""
    return blake2b(regex.encode(), digest_size=6).hexdigest()


@cache
def _index() -> Mapping[str, tuple[str, ...]]:
    lines = INDEX.read_text(encoding="utf-8").splitlines()
    return {key: tuple(anchors) for key, *anchors in (line.split("\t") for line in lines)}


def _by_anchor(patterns: Iterable[Pattern]) -> Mapping[str, tuple[Pattern, ...]]:
    found = grouped((anchor, pattern) for pattern in patterns for anchor in pattern.anchors)
    return {anchor: tuple(patterns) for anchor, patterns in found.items()}


@cache
def of_catalogue() -> tuple[Pattern, ...]:
    """The rows of the catalogue that a search looks for. They prove nothing of the job's end: a job may go on after them."""
    rows = searched_rows()
    return tuple(Pattern(r.kind, r.role, "", row_regex(r), anchors, r.emitter, r.layer) for r, anchors in rows)


@cache
def by_anchor() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to, without those of the background."""
    return _by_anchor([*(p for p in all_patterns() if not p.is_background), *of_catalogue()])


@cache
def all_anchors() -> Mapping[str, tuple[Pattern, ...]]:
    """The patterns that each anchor leads to, with those of the background."""
    return _by_anchor([*all_patterns(), *of_catalogue()])


@cache
def _index_of_anchors() -> AnchorIndex:
    return AnchorIndex(all_anchors())


def anchors_in(line: str) -> Sequence[str]:
    """The anchors that a line holds, in the order in which they begin; some of them several times."""
    return _index_of_anchors().anchors_in(line)


def matches(line: str) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line, each once."""
    return matches_of(line, anchors_in(line))


def matches_of(line: str, anchors: Iterable[str]) -> Iterator[tuple[Pattern, re.Match[str]]]:
    """The patterns that match a line of which the anchors are known, each once."""
    known = all_anchors()
    seen: set[int] = set()
    for anchor in anchors:
        for pattern in known[anchor]:
            if id(pattern) not in seen:
                seen.add(id(pattern))
                match = pattern.compiled.search(line)
                if match is not None:
                    yield pattern, match


MAX_EVENTS_OF_A_KIND = 2000
_FEW_LINES = 300  # below it, to search line by line is faster than to get ready for all at once


def events_of(lines: Iterable[LogLine]) -> tuple[LogEvent, ...]:
    """What the lines say, in their order. Of a kind that floods the log the first ones are kept."""
    found: list[LogEvent] = []
    counts: dict[str, int] = {}
    for order, line, pattern, match in _understood(list(lines)):
        count = counts[pattern.kind] = counts.get(pattern.kind, 0) + 1
        if count > MAX_EVENTS_OF_A_KIND:
            continue
        fields = {name: value for name, value in match.groupdict().items() if value is not None}
        printed = fields.get("rank", "")
        rank = int(printed) if printed.isdecimal() and len(printed) <= 7 else line.rank
        found.append(
            LogEvent(pattern.kind, line.text, line.source, order, rank, line.host, line.time_ns, fields, pattern.says)
        )
    found.sort(key=lambda e: (e.order, e.kind))
    ignored = _ignored(found) if "python.swallowed" in counts else ()
    kept = [e for e in found if e.order not in ignored or e.kind.startswith(_ITSELF)]
    if "ending.by_script" not in counts:
        return tuple(kept)
    asked = next(e.order for e in found if e.kind == "ending.by_script")
    # A step that was cancelled after the script itself had asked for that, and not for a limit, is no trouble.
    return tuple(e for e in kept if e.order < asked or e.kind != "ending.cancelled" or e["why"])


def _ignored(events: Sequence[LogEvent]) -> set[int]:
    """The lines of exceptions that Python ignored, as in a destructor: what they say ended nothing."""
    begun: dict[tuple[int | None, str], int] = {}
    places = set()
    for event in events:
        key = event.rank, event.host
        if event.kind == "python.swallowed":
            begun[key] = event.order
        elif event.kind == "python.error_line" and event.order - begun.pop(key, -_MOST_LINES) < _MOST_LINES:
            places.add(event.order)
    return places


def _understood(lines: Sequence[LogLine]) -> Iterator[tuple[int, LogLine, Pattern, re.Match[str]]]:
    """The lines that match, with their place among all."""
    if len(lines) <= _FEW_LINES:
        for order, line in enumerate(lines):
            for pattern, match in matches(line.text):
                yield order, line, pattern, match
        return
    for order, anchors in words_in_lines([line.text for line in lines], tuple(all_anchors())):
        for pattern, match in matches_of(lines[order].text, anchors):
            yield order, lines[order], pattern, match


TABLES = ("exceptions/peers", "exceptions/causes")
_MOST_LINES, _MOST_CHARS = 60, 4000
_ITSELF = ("python.",)  # that it is an exception
_OUTPUT = ("output", "log")


def is_echo(text: str) -> bool:
    """Whether a text only says that a peer, the network or the store went away, or that the wait for them ran out.

    An exception is given as `Type: message`. Of a long text the first lines are looked at.
    """
    return any(row.role == "echo" for row in _rows_for(text))


def kinds_in(text: str) -> frozenset[str]:
    """The kinds of what an exception says, given as `Type: message`."""
    return frozenset(row.kind for row in _rows_for(text))


def events_of_errors(
    errors: Iterable[tuple[int | None, RaisedError]], of_logs: Sequence[LogEvent]
) -> Iterator[LogEvent]:
    """The events in exceptions that processes reported themselves, each with its rank, after all lines of the logs.

    What a log holds is an event already, and is left out. An exception proves nothing more than its own end: `says` is empty.
    """
    known = {(e.kind, e.rank, e.text.strip()) for e in of_logs}
    order = max((e.order for e in of_logs), default=0) + 1
    for number, (rank, error) in enumerate(errors):
        if error.source.reader in _OUTPUT:
            continue
        for line, row, match in _as_of_a_log(error.text):
            key = (row.kind, rank, line.strip())
            if key not in known and not row.is_background and not row.kind.startswith(_ITSELF):
                known.add(key)
                fields = {name: value for name, value in match.groupdict().items() if value is not None}
                yield LogEvent(
                    row.kind, line, error.source, order + number, rank, time_ns=error.time_ns or None, fields=fields
                )


def _rows_for(text: str) -> Iterator[Pattern]:
    """The rows that match a text, of all tables."""
    yield from _in_general(text)
    for _, row, _ in _as_of_a_log(text):
        yield row


@lru_cache(maxsize=1024)
def _as_of_a_log(text: str) -> Sequence[tuple[str, Pattern, re.Match[str]]]:
    """The rows for lines of logs that match the lines of a text."""
    return [(line, row, match) for line in _lines(text) for row, match in matches(line)]


@lru_cache(maxsize=1024)
def _in_general(text: str) -> Sequence[Pattern]:
    """The rows for exceptions alone that match the lines of a text."""
    lines = _lines(text)
    return [
        row
        for row in _general()
        if any(any(anchor in line for anchor in row.anchors) and row.compiled.search(line) for line in lines)
    ]


def _lines(text: str) -> Sequence[str]:
    return [line[:_MOST_CHARS] for line in text.splitlines()[:_MOST_LINES]]


def _general() -> Iterator[Pattern]:
    for name in TABLES:
        yield from table(name)
