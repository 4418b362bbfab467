"""Lines of a log, and exceptions -> events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from unhang.model import LogEvent, LogLine, RaisedError
from unhang.read.logs.patterns import Pattern, all_anchors, all_patterns, matches, matches_of, table
from unhang.read.logs.scan_engines import words_in_lines

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
    return tuple(e for e in kept if e.order < asked or not _is_own_end(e))


def _is_own_end(event: LogEvent) -> bool:
    """Whether a step was cancelled, and not for a limit: after the script itself asked for that, it is no trouble."""
    return event.kind == "ending.cancelled" and not event["why"]


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
    return any(row.role == "echo" for row in _rows(text))


def kinds_in(text: str) -> frozenset[str]:
    """The kinds of what an exception says, given as `Type: message`."""
    return frozenset(row.kind for row in _rows(text))


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


def guards_text() -> str:
    """The echoes for the guards, which run in the user's process and import nothing of this: an expression and its anchors a line."""
    echoes = dict.fromkeys((p.regex, p.anchors) for p in (*_general(), *all_patterns()) if p.role == "echo")
    return "".join("\t".join([regex, *anchors]) + "\n" for regex, anchors in echoes)


def _rows(text: str) -> Iterator[Pattern]:
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
