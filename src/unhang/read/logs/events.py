"""Lines of a log -> events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from unhang.model import LogEvent, LogLine
from unhang.read.logs.patterns import Pattern, all_anchors, matches, matches_of
from unhang.read.logs.scan_lines import words_in_lines

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
    return tuple(sorted(found, key=lambda e: (e.order, e.kind)))


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
