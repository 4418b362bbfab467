"""Lines of one block of a log, cut out where they are asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from unhang.numeric import has_numpy, np, npt

_NEWLINE = re.compile(rb"\n")
Piece = tuple[int, int, bytes]
"""The number of a line, where in the log the text begins, and the text."""

LONG_LINE, BEFORE, AFTER, PREFIX = 16384, 1000, 6000, 128


class Newlines:
    """The ends of the lines in the first `end` bytes. With numpy it writes to `scratch`, if there is one: fresh memory costs more than the work."""

    def __init__(self, data: bytes, end: int, scratch: npt.NDArray[np.bool_] | None = None) -> None:
        self._data, self._end = data, end
        self._is_there: npt.NDArray[np.bool_] | None = None
        if has_numpy():
            found = np.empty(end, np.bool_) if scratch is None or len(scratch) < end else scratch[:end]
            self._is_there = np.equal(np.frombuffer(data, np.uint8, end), 10, out=found)

    def count(self, begin: int, end: int) -> int:
        """How many there are between two places."""
        if self._is_there is None:
            return self._data.count(b"\n", begin, end)
        return int(np.count_nonzero(self._is_there[begin:end]))

    def places(self) -> Sequence[int] | npt.NDArray[np.intp]:
        """Where they are."""
        if self._is_there is None:
            return [match.start() for match in _NEWLINE.finditer(self._data, 0, self._end)]
        return np.flatnonzero(self._is_there)


class Block:
    """Lines as `piece` gives them: whole up to `LONG_LINE` bytes, of longer ones the parts that matter.

    `number` and `begin`: number and place of the first line. `scratch`: see `Newlines`.
    """

    def __init__(
        self, data: bytes, end: int, number: int, begin: int, scratch: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self._data, self._end, self._number, self._begin = data, end, number, begin
        self._newlines = Newlines(data, end, scratch)
        self.newlines = self._newlines.count(0, end)
        self.lines = self.newlines + (end > 0 and data[end - 1] != 10)
        self._made: dict[tuple[int, int], Piece] = {}
        self._counted_to = self._counted = 0
        self._part = (0, 0)

    @cached_property
    def _ends(self) -> Sequence[int] | npt.NDArray[np.intp]:
        return self._newlines.places()

    def line_at(self, place: int) -> int:
        """The line in which a place lies."""
        if place < self._counted_to:
            self._counted_to = self._counted = 0
        self._counted += self._newlines.count(self._counted_to, place)
        self._counted_to = place
        return self._counted

    def line_with(self, text: bytes, line: int) -> int:
        """The first line from `line` on that holds a text; `lines` if there is none."""
        start = self._span(line)[0] if line < self.lines else self._end
        place = self._data.find(text, start, self._end)
        return self.lines if place < 0 else self.line_at(place)

    def pieces(self) -> list[Piece]:
        """All lines."""
        return [self.piece(line) for line in range(self.lines)]

    def piece(self, line: int) -> Piece:
        """A line; of a long one its ends."""
        start, stop = self._span(line)
        return self._piece(line, start, stop, start, stop)

    def piece_at(self, place: int, line: int) -> Piece:
        """The line in which a place lies; of a long one the part around it."""
        start = self._data.rfind(b"\n", 0, place) + 1
        stop = self._data.find(b"\n", place, self._end)
        stop = self._end if stop < 0 else stop
        if stop - start <= LONG_LINE:
            return self._piece(line, start, stop, start, stop)
        shown_from, shown_to = self._part
        if not shown_from <= place < shown_to - BEFORE or shown_from < start:
            shown_from = max(start, self._data.rfind(b"\r", start, place) + 1, place - BEFORE)
            cut = self._data.find(b"\r", place, stop)
            shown_to = min(cut if cut >= 0 else stop, shown_from + BEFORE + AFTER)
            self._part = shown_from, shown_to
        return self._piece(line, start, stop, shown_from, shown_to)

    def _piece(self, line: int, start: int, stop: int, shown_from: int, shown_to: int) -> Piece:
        known = self._made.get((line, shown_from))
        if known is None:
            known = self._number + line, self._begin + shown_from, self._text(start, stop, shown_from, shown_to)
            self._made[line, shown_from] = known
        return known

    def _text(self, start: int, stop: int, shown_from: int, shown_to: int) -> bytes:
        data = self._data
        if shown_to - shown_from > LONG_LINE:
            half = LONG_LINE // 4
            return data[start : start + half] + b" ... " + data[stop - half : stop]
        if shown_from > start and data.find(b"\r", start, shown_from) < 0:
            prefix = data[start : min(shown_from, start + PREFIX)]
            return prefix + b" ... " + data[shown_from:shown_to]
        return data[shown_from:shown_to]

    def _span(self, line: int) -> tuple[int, int]:
        start = int(self._ends[line - 1]) + 1 if line else 0
        return start, int(self._ends[line]) if line < self.newlines else self._end
