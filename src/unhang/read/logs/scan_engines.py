"""Finds many literal texts at once in blocks of bytes, or in many lines: with hyperscan, with numpy, or one by one. All find the same."""

from __future__ import annotations

import importlib
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Protocol

from unhang.errors import UnreadableInput
from unhang.numeric import has_numpy, np, npt

Hit = tuple[int, int]
"""Where a text begins, and which one of them it is."""

_GRAM = 4
_FACTOR = 0x9E3779B1
_TABLE_BITS = 17
_SHIFT = 32 - _TABLE_BITS
_SAMPLE_BYTES = 1 << 20
_CROWDED, _TUNE_EVERY = 0.02, 64
_MAX_MISSES = 3
_CROWD, _FEW = 24, 4


Texts = Mapping[int, bytes]
"""The texts by their numbers."""


class Engine(Protocol):
    """Where texts are in a block of bytes."""

    def hits(self, block: bytes) -> list[Hit]:
        """Every place of every text, in any order; of the quiet ones at least the first place."""
        ...


Make = Callable[[Texts, frozenset[int]], Engine]
"""Makes an engine; the second argument are the texts that are quiet."""


class Finder:
    """Finds texts in one block after the other.

    A text that floods the log is made quiet: only its first place in each block is told. As long as it does flood, a plain
    search finds it at once, and the engine need not look for it; when it has been absent for some blocks, the engine does.
    """

    def __init__(self, texts: Sequence[bytes], make: Make) -> None:
        self._texts = dict(enumerate(texts))
        self._make = make
        self._quiet: frozenset[int] = frozenset()
        self._misses: dict[int, int] = {}
        self._short = [number for number, text in self._texts.items() if len(text) < _GRAM]
        self._rebuild()

    def quieten(self, numbers: Collection[int]) -> None:
        """Makes these texts quiet as well."""
        new = frozenset(numbers).difference(self._quiet, self._short)
        if new:
            self._quiet |= new
            self._misses.update(dict.fromkeys(new, 0))
            self._rebuild()

    def hits(self, block: bytes) -> list[Hit]:
        """Every place of every text, in the order of the places, then of the texts; of a quiet one the first."""
        found: list[Hit] = []
        first: dict[int, int] = {}
        for place, number in self._engine.hits(block):
            if number not in self._quiet:
                found.append((place, number))
            elif place < first.get(number, len(block)):
                first[number] = place
        for number in self._short:
            found.extend((place, number) for place in _places(block, self._texts[number]))
        for number in self._misses:
            place = block.find(self._texts[number])
            if place >= 0:
                first[number] = place
            self._misses[number] = 0 if place >= 0 else self._misses[number] + 1
        if self._misses and max(self._misses.values()) > _MAX_MISSES:
            self._misses = {number: misses for number, misses in self._misses.items() if misses <= _MAX_MISSES}
            self._rebuild()
        found.extend((place, number) for number, place in first.items())
        found.sort()
        return found

    def _rebuild(self) -> None:
        left_out = {*self._misses, *self._short}
        texts = tuple((number, text) for number, text in self._texts.items() if number not in left_out)
        self._engine = _made(self._make, texts, self._quiet)


@lru_cache(maxsize=32)
def _made(make: Make, texts: tuple[tuple[int, bytes], ...], quiet: frozenset[int]) -> Engine:
    """Engines are made once for all files that are flooded alike."""
    return make(dict(texts), quiet)


def _places(block: bytes, text: bytes) -> Iterator[int]:
    place = block.find(text)
    while place >= 0:
        yield place
        place = block.find(text, place + 1)


class GramEngine:
    """Looks only at every fourth place: of any four neighbouring 4-byte grams of a text one lies there.

    For each text the four neighbours that are rarest in the data are taken. Texts of 5 or 6 bytes need every second place
    and those of 4 bytes every place. A table of hashed grams rules out nearly all places; the rest are compared.
    """

    def __init__(self, texts: Texts, quiet: frozenset[int] = frozenset()) -> None:
        self._texts = texts
        self._quiet = quiet
        self._blocks_since = -1
        self._tables: list[tuple[int, npt.NDArray[np.bool_]]] = []
        self._grams = np.empty(0, np.uint32)
        self._at: list[list[tuple[int, int, bytes, int]]] = []
        self._is_quiet = np.empty(0, np.bool_)
        self._scratch = _scratch(0)

    def hits(self, block: bytes) -> list[Hit]:
        """See `Engine`."""
        if self._blocks_since < 0:
            self._tune(block)
        self._blocks_since += 1
        found: list[Hit] = []
        if len(self._scratch[0]) * _GRAM < len(block):
            self._scratch = _scratch(len(block) // _GRAM + 1)
        for shift, table in self._tables:
            size = max(0, len(block) - shift) // _GRAM
            if not size:
                continue
            grams = np.frombuffer(block, np.uint32, size, shift)
            hashed, index, is_there = (scratch[:size] for scratch in self._scratch)
            np.multiply(grams, _FACTOR, out=hashed)
            np.right_shift(hashed, _SHIFT, out=hashed)
            index[:] = hashed
            table.take(index, mode="clip", out=is_there)
            places = is_there.nonzero()[0]
            if len(places) > _CROWDED * size and self._blocks_since > _TUNE_EVERY:
                self._tune(block)
                return self.hits(block)
            if len(places):
                self._compare(block, grams[places], places * _GRAM + shift, found)
        return found

    def _compare(
        self, block: bytes, values: npt.NDArray[np.uint32], places: npt.NDArray[np.intp], found: list[Hit]
    ) -> None:
        which = np.searchsorted(self._grams, values)
        which[which == len(self._grams)] = 0
        is_one = self._grams[which] == values
        which, places = which[is_one], places[is_one]
        counts = np.bincount(which, minlength=len(self._grams))
        is_crowd = (counts > _CROWD) | ((counts > 0) & self._is_quiet)
        for gram in np.flatnonzero(is_crowd).tolist():
            self._crowd(block, gram, places[which == gram], found)
        is_alone = ~is_crowd[which]
        at = self._at
        for place, gram in zip(places[is_alone].tolist(), which[is_alone].tolist(), strict=True):
            for number, offset, text, step in at[gram]:
                if place >= offset and place % step == 0 and block.startswith(text, place - offset):
                    found.append((place - offset, number))

    def _crowd(self, block: bytes, gram: int, places: npt.NDArray[np.intp], found: list[Hit]) -> None:
        """The same for many places of one gram: texts are compared byte by byte, all places at once."""
        characters = np.frombuffer(block, np.uint8)
        for number, offset, text, step in self._at[gram]:
            begins = places[places % step == 0] - offset
            begins = begins[(begins >= 0) & (begins <= len(block) - len(text))]
            for i, character in enumerate(text):
                if len(begins) <= _FEW:
                    break
                if not offset <= i < offset + _GRAM:
                    begins = begins[characters[begins + i] == character]
            is_quiet = number in self._quiet
            for begin in begins.tolist():
                if block.startswith(text, begin):
                    found.append((begin, number))
                    if is_quiet:
                        break

    def _tune(self, block: bytes) -> None:
        """Takes for each text the neighbouring grams that this block has least."""
        self._blocks_since = 0
        counts = np.zeros(1 << _TABLE_BITS, np.int64)
        for shift in range(_GRAM):
            size = max(0, min(len(block), _SAMPLE_BYTES) - shift) // _GRAM
            grams = np.frombuffer(block, np.uint32, size, shift) if size else np.empty(0, np.uint32)
            counts += np.bincount((grams * _FACTOR) >> _SHIFT, minlength=1 << _TABLE_BITS)
        chosen: dict[int, list[tuple[int, int, bytes, int]]] = {}
        in_table: dict[int, set[int]] = {shift: set() for shift in range(_GRAM)}
        for number, text in self._texts.items():
            step = 4 if len(text) >= 7 else 2 if len(text) >= 5 else 1
            grams = _grams_of(text)
            sums = np.convolve(counts[(grams * _FACTOR) >> _SHIFT], np.ones(step, np.int64), "valid")
            offset = int(np.argmin(sums))
            for i in range(offset, offset + step):
                gram = int(grams[i])
                chosen.setdefault(gram, []).append((number, i, text, step))
                for shift in range(0, _GRAM, step):
                    in_table[shift].add(gram)
        self._grams = np.array(sorted(chosen), np.uint32)
        self._at = [chosen[gram] for gram in self._grams.tolist()]
        self._is_quiet = np.array([all(n in self._quiet for n, *_ in places) for places in self._at], np.bool_)
        self._tables = [(shift, _table(grams_here)) for shift, grams_here in in_table.items() if grams_here]


def _scratch(size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Memory for intermediate results: fresh memory for each block costs more than the work."""
    return np.empty(size, np.uint32), np.empty(size, np.intp), np.empty(size, np.bool_)


@cache
def _grams_of(text: bytes) -> npt.NDArray[np.uint32]:
    return np.array([int.from_bytes(text[i : i + _GRAM], "little") for i in range(len(text) - _GRAM + 1)], np.uint32)


def _table(grams: set[int]) -> npt.NDArray[np.bool_]:
    table = np.zeros(1 << _TABLE_BITS, np.bool_)
    table[(np.array(sorted(grams), np.uint32) * _FACTOR) >> _SHIFT] = True
    return table


class PlainEngine:
    """One text after the other: three megabytes in a second, a hundredth of the others. For where neither of them is installed."""

    def __init__(self, texts: Texts, quiet: frozenset[int] = frozenset()) -> None:
        self._texts = {number: (text, 1 if number in quiet else None) for number, text in texts.items()}

    def hits(self, block: bytes) -> list[Hit]:
        """See `Engine`."""
        return [(place, n) for n, (text, most) in self._texts.items() for place in islice(_places(block, text), most)]


class HyperscanEngine:
    """The same through hyperscan.

    Raises:
        UnreadableInput: hyperscan is not installed.
    """

    def __init__(self, texts: Texts, quiet: frozenset[int] = frozenset()) -> None:
        try:
            hyperscan: Any = importlib.import_module("hyperscan")
        except ImportError as error:
            raise UnreadableInput("hyperscan is not installed; pip install 'unhang[fast]'") from error
        self._sizes = {number: len(text) for number, text in texts.items()}
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        if texts:
            flags = [hyperscan.HS_FLAG_SINGLEMATCH if number in quiet else 0 for number in texts]
            self._database.compile(
                expressions=list(texts.values()), ids=list(texts), elements=len(texts), flags=flags, literal=True
            )

    def hits(self, block: bytes) -> list[Hit]:
        """See `Engine`."""
        if not self._sizes:
            return []
        found: list[Hit] = []

        def take(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((end - self._sizes[number], number))

        self._database.scan(block, match_event_handler=take)
        return found


def has_hyperscan() -> bool:
    """Whether hyperscan is there."""
    try:
        importlib.import_module("hyperscan")
    except ImportError:
        return False
    return True


_BATCH_CHARS = 128 << 10


def words_in_lines(lines: Sequence[str], words: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The index of each line that holds one of the words, and these in the order in which they begin."""
    finder = Finder([word.encode() for word in words], GramEngine if has_numpy() else PlainEngine)
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


_NEWLINE = re.compile(rb"\n")


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


_CHARS = 4


class AnchorIndex:
    """Texts by the four characters with which they begin."""

    def __init__(self, anchors: Iterable[str]) -> None:
        found: dict[str, list[str]] = {}
        for anchor in sorted(anchors, key=lambda a: (-len(a), a)):
            found.setdefault(anchor[:_CHARS], []).append(anchor)
        self._short = [gram for gram in found if len(gram) < _CHARS]
        self._grams = {tuple(gram): anchors for gram, anchors in found.items() if len(gram) == _CHARS}

    def anchors_in(self, line: str) -> Sequence[str]:
        """The texts that a line holds, in the order in which they begin; some of them several times."""
        places = [(place, anchor) for anchor in self._short if (place := line.find(anchor)) >= 0]
        grams = zip(line, line[1:], line[2:], line[3:], strict=False)
        for place, anchors in enumerate(map(self._grams.get, grams)):
            if anchors is not None:
                places.extend((place, anchor) for anchor in anchors if line.startswith(anchor, place))
        places.sort(key=lambda found: found[0])
        return [anchor for _, anchor in places]
