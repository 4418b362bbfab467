"""The rows of the catalogue that a line is, the most special one first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache

from unhang.read.logs.anchors import AnchorIndex
from unhang.read.logs.catalogue.rows import Row, anchor_of, bulk_rows, literals, row_regex, weighed_rows

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
