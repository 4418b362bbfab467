"""Lines of a log -> events."""

from __future__ import annotations

from collections.abc import Iterable

from unhang.model import LogEvent, LogLine
from unhang.read.logs.patterns import matches

MAX_EVENTS_OF_A_KIND = 2000


def events_of(lines: Iterable[LogLine]) -> tuple[LogEvent, ...]:
    """What the lines say, in their order. Of a kind that floods the log the first ones are kept."""
    found: list[LogEvent] = []
    counts: dict[str, int] = {}
    for order, line in enumerate(lines):
        for pattern, match in matches(line.text):
            count = counts[pattern.kind] = counts.get(pattern.kind, 0) + 1
            if count > MAX_EVENTS_OF_A_KIND:
                continue
            fields = {name: value for name, value in match.groupdict().items() if value is not None}
            told = fields.get("rank", "")
            rank = int(told) if told.isdecimal() and len(told) <= 7 else line.rank
            found.append(
                LogEvent(
                    pattern.kind, line.text, line.source, order, rank, line.host, line.time_ns, fields, pattern.says
                )
            )
    return tuple(found)
