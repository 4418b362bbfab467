"""Which of many texts each of many lines holds: all lines at once, some fifty times faster than line by line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from unhang.read.logs.scan_engines import Finder, GramEngine, Make

_BATCH_CHARS = 128 << 10


def words_in_lines(
    lines: Sequence[str], words: Sequence[str], make: Make = GramEngine
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The index of each line that holds one of the words, and these in the order in which they begin."""
    finder = Finder([word.encode() for word in words], make)
    first, size = 0, 0
    for i, line in enumerate(lines):
        size += len(line) + 1
        if size >= _BATCH_CHARS or i == len(lines) - 1:
            yield from _found(finder, lines, first, i + 1, words)
            first, size = i + 1, 0


def _found(
    finder: Finder, lines: Sequence[str], first: int, end: int, words: Sequence[str]
) -> Iterator[tuple[int, tuple[str, ...]]]:
    encoded = [line.encode("utf-8", "replace") for line in lines[first:end]]
    begins = [0]
    for text in encoded:
        begins.append(begins[-1] + len(text) + 1)
    found: dict[int, dict[str, None]] = {}
    for place, number in finder.hits(b"\n".join(encoded)):
        found.setdefault(bisect_right(begins, place) - 1, {})[words[number]] = None
    for line, here in found.items():
        yield first + line, tuple(here)
