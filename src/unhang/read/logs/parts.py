"""Lines that a runtime or a launcher handed on in parts, put together again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

MAX_JOINED_CHARS = 1 << 20
# So much of a line a launcher's buffer holds; of a line that is longer the rest comes behind the same label.
_BUFFERS = frozenset(size - less for size in (512, 1024, 2048, 4096, 8192, 16384, 32768) for less in (0, 1, 2))
_SHORTEST = min(_BUFFERS)
_LABEL = re.compile(
    r" {0,6}\d{1,7}: |\[\d{1,6},\d{1,7}\](?:\[[^\]\s]{1,80}\])?<std(?:out|err)>: ?|\[[a-z]{3,20}\d{1,5}\]:"
)
_RUNTIME = re.compile(r"\S{20,40} (std(?:out|err)) ([PF]) ")

Lines = Sequence[tuple[int, str]]


def joined(lines: Lines) -> Iterator[tuple[int, str]]:
    """The lines, each whole, with the number of its first part.

    A container's runtime says of each part whether it is the last (`stdout P`, `stdout F`). What `srun --label` and its like cut is known
    by its length, and by the same label on the line behind it.
    """
    open_parts: dict[str, tuple[int, str]] = {}
    before: tuple[int, str, str, int] | None = None  # number, line, label, length of its last part
    for number, line in lines:
        if " P " in line[:60] or open_parts:
            match = _RUNTIME.match(line)
            if match is not None:
                stream, begun = match[1], open_parts.pop(match[1], None)
                whole = (begun[0], begun[1] + line[match.end() :]) if begun else (number, line)
                if match[2] == "P" and len(whole[1]) < MAX_JOINED_CHARS:
                    open_parts[stream] = whole
                    continue
                number, line = whole
        if before is not None:
            label = before[2]
            if line.startswith(label) and len(before[1]) < MAX_JOINED_CHARS:
                rest = line[len(label) :]
                line = before[1] + rest
                before = (before[0], line, label, len(rest))
                if len(rest) in _BUFFERS:
                    continue
                yield before[0], line
                before = None
                continue
            yield before[0], before[1]
            before = None
        if len(line) > _SHORTEST - 3 and (match := _LABEL.match(line)) and len(line) - match.end() in _BUFFERS:
            before = (number, line, match[0], 0)
            continue
        yield number, line
    if before is not None:
        yield before[0], before[1]
    for number, line in open_parts.values():
        yield number, line
