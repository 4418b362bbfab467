"""The texts that heads and tails of dumps memoise, found by their bytes: `X`, length, text, PUT, number.

What looks like such a text and is none has another number, or the same one as a text that differs; then the dump is
left to the reader of whole dumps.

Legend of shapes: X texts of all dumps, F dumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from unhang.read.dumps.columns import FACTORS, Bytes, Ints, words_at
from unhang.read.dumps.decode_rows import distinct
from unhang.read.dumps.definitions import PAD, Texts, places, wide
from unhang.read.dumps.layouts import LONG_PUT, PUT, TEXT

MAX_NUMBER = 1 << 16  # texts that entries use again have low numbers
_KEPT = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # the first bytes of a little-endian word


@dataclass(frozen=True)
class Memos:
    """Which text has which number in the memo of which dump. `conflict_F`: dumps that give a number to two texts."""

    dump_X: Ints
    number_X: Ints
    text_X: Ints
    conflict_F: npt.NDArray[np.bool_]

    @property
    def width(self) -> int:
        """One more than the highest number."""
        return int(self.number_X.max(initial=0)) + 1

    def table(self) -> tuple[Ints, Ints]:
        """Like `text_table`: the text of each number, one dump behind the other, and where each dump begins."""
        width = self.width
        table = np.full(1 + width * len(self.conflict_F), -1, np.int64)
        table[1 + self.dump_X * width + self.number_X] = self.text_X
        return table, 1 + width * np.arange(len(self.conflict_F) + 1)

    def numbers_of(self, text: int) -> Ints:
        """The number of a text in each dump, -1 where it has none; of shape [F]."""
        found = np.full(len(self.conflict_F), -1, np.int64)
        here = self.text_X == text
        found[self.dump_X[here]] = self.number_X[here]
        return found

    def texts_of(self, dump: int, numbers: Sequence[int]) -> list[int]:
        """The texts with these numbers in a dump, -1 where there is none."""
        mine = np.flatnonzero(self.dump_X == dump)
        known = dict(zip(self.number_X[mine].tolist(), self.text_X[mine].tolist(), strict=True))
        return [known.get(number, -1) for number in numbers]


@dataclass
class TextFinder:
    """Finds texts. Equal ones are looked at once: of the others only a digest is taken."""

    texts: Texts
    _of_digest: dict[int, int] = field(default_factory=dict)

    def find(self, buffer: Bytes, ends: Ints, dumps: int) -> Memos:
        """The texts in parts of `dumps` dumps, which end at `ends`: the first part of each one, then its second."""
        at = places(buffer[:-PAD] == TEXT)
        at = at[(buffer[at + 2] | buffer[at + 3] | buffer[at + 4]) == 0]
        part = np.searchsorted(ends, at, side="right")
        length = buffer[at + 1].astype(np.int64)
        put = np.minimum(at + 5 + length, len(buffer) - PAD)
        is_long = buffer[put] == LONG_PUT
        good = (is_long | (buffer[put] == PUT)) & (put + np.where(is_long, 5, 2) <= ends[part])
        at, length, put, part, is_long = (column[good] for column in (at, length, put, part, is_long))
        number = np.where(is_long, wide(buffer, put + 1), buffer[put + 1])
        low = number < MAX_NUMBER
        at, length, number, dump = at[low], length[low], number[low], part[low] % dumps
        text = self._texts_at(buffer, at + 5, length)
        memos = Memos(dump, number, text, np.zeros(dumps, bool))
        table, base_F = memos.table()
        memos.conflict_F[dump[table[base_F[dump] + number] != text]] = True
        return memos

    def _texts_at(self, buffer: Bytes, at: Ints, length: Ints) -> Ints:
        """The numbers of texts, -1 for those that must be read the slow way."""
        digest = np.zeros(len(at), np.uint64)
        words = -(-length // 8)
        for count in np.flatnonzero(np.bincount(words)).tolist():
            some = np.flatnonzero(words == count)
            if count:
                part = words_at(buffer, at[some], 8 * count)
                part[:, -1] &= _KEPT[length[some] - 8 * (count - 1)]
                part ^= part >> np.uint64(32)
                digest[some] = part @ FACTORS[:count]
        digest += length.astype(np.uint64)
        firsts, codes = distinct(digest)
        found = []
        for value, begin, size in zip(
            digest[firsts].tolist(), at[firsts].tolist(), length[firsts].tolist(), strict=True
        ):
            text = self._of_digest.get(value)
            if text is None:
                text = self._of_digest[value] = self._number(buffer[begin : begin + size].tobytes())
            found.append(text)
        return np.array(found, np.int64)[codes]

    def _number(self, raw: bytes) -> int:
        try:
            return self.texts[raw.decode()]
        except UnicodeDecodeError:
            return -1
