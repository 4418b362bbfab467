"""The entries of many dumps as columns of raw values: each layout is cut out of all its entries at once.

Legend of shapes: N entries of the batch, F dumps, n entries of one length, W their bytes, padded to whole words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from unhang.read.dumps.decode_header import Head
from unhang.read.dumps.layouts import INT4, INTS, LONG, Got, Layout, Memo, Number, Quirk, normalised

Ints = npt.NDArray[np.int64]
MISSING = -1
NUMBERS = {  # name: what stands for a missing one
    "record_id": 0,
    "pg_id": MISSING,
    "collective_seq_id": 0,
    "p2p_seq_id": MISSING,
    "time_created_ns": 0,
    "time_discovered_started_ns": 0,
    "time_discovered_completed_ns": 0,
    "timeout_ms": MISSING,
}
TEXTS = ("profiling_name", "state", "group", "desc", "thread_name", "thread_id")
SPANS = ("frames", "input_sizes", "output_sizes")
PAD = 16
_MAX_LAYOUTS, _MAX_NEW = 4096, 512
_LAYOUTS: dict[tuple[tuple[str, ...], int], list[Layout]] = {}
# Odd numbers of its own for each process, so that nobody can write two spans that look equal.
_FACTORS = np.random.default_rng().integers(1 << 62, size=1 << 12, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass
class Batch:
    """Entries of several dumps in one buffer, and what stands in them.

    `start_N`, `length_N`: where each entry lies; `dump_N`: whose it is; those beyond `size` lie in `extra`.
    `wanted_N`: entries whose values are needed, the others only define texts. `limit_N`: the memo's end behind the entry.
    """

    buffer: npt.NDArray[np.uint8]
    heads: Sequence[Head]
    start_N: Ints
    length_N: Ints
    dump_N: Ints
    wanted_N: npt.NDArray[np.bool_]
    quirky_F: npt.NDArray[np.bool_] = field(init=False)
    limit_N: Ints = field(init=False)
    is_moved_N: npt.NDArray[np.bool_] = field(init=False)
    extra: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    numbers: dict[str, Ints] = field(default_factory=dict)
    texts: dict[str, npt.NDArray[np.int32]] = field(default_factory=dict)
    flags: dict[str, npt.NDArray[np.int8]] = field(default_factory=dict)
    spans: dict[str, npt.NDArray[np.uint64]] = field(default_factory=dict)
    mixed_dtypes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = len(self.start_N)
        self.quirky_F = np.zeros(len(self.heads), bool)
        self.is_moved_N = np.zeros(count, bool)
        self.numbers = {name: np.full(count, default, np.int64) for name, default in NUMBERS.items()}
        self.texts = {name: np.full(count, -1, np.int32) for name in (*TEXTS, "dtype", "others")}
        self.flags = {name: np.full(count, MISSING, np.int8) for name in ("retired", "is_p2p")}
        self.spans = {name: np.zeros(count, np.uint64) for name in SPANS}
        self.layout_N = np.full(count, -1, np.int32)
        self.layouts: list[Layout] = []
        self._new = 0
        self._forms: dict[tuple[str, ...], int] = {}
        self._form_F = np.array([self._forms.setdefault(h.names, len(self._forms)) for h in self.heads])
        self._keys = [np.zeros((len(self.heads), len(names)), np.uint32) for names in self._forms]
        for dump, head in enumerate(self.heads):
            self._keys[self._form_F[dump]][dump] = head.keys

    def decode(self) -> None:
        """Fills the columns. Dumps that need the slow way become quirky."""
        unfit = self._fit(np.arange(len(self.start_N)), self.buffer, may_define=True)
        self._move(np.sort(unfit))
        left = self._fit(np.flatnonzero(self.is_moved_N), self.extra, may_define=False)
        self.quirky_F[self.dump_N[left]] = True

    def span(self, name: str, row: int) -> bytes:
        """The bytes of a list in one entry."""
        begin, end = self.layouts[self.layout_N[row]].spans[name]
        at = self.start_N[row]
        return (self.extra if self.is_moved_N[row] else self.buffer)[at + begin : at + end].tobytes()

    def _row(self, row: int) -> bytes:
        at = self.start_N[row]
        return self.buffer[at : at + self.length_N[row]].tobytes()

    def _fit(self, rows: Ints, buffer: npt.NDArray[np.uint8], may_define: bool) -> Ints:
        """Reads the entries of known or new layouts; returns the others."""
        if not len(rows):
            return rows
        key = self._form_F[self.dump_N[rows]] << 32 | self.length_N[rows]
        order = np.argsort(key, kind="stable")
        rows, key = rows[order], key[order]
        cuts = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(rows)]
        names = list(self._forms)
        unfit = []
        for begin, end in zip(cuts, cuts[1:], strict=False):
            length, form = int(key[begin]) & 0xFFFFFFFF, int(key[begin]) >> 32
            left = self._fit_length(rows[begin:end], buffer, (names[form], length), may_define)
            if len(left):
                unfit.append(left)
        return np.concatenate(unfit) if unfit else rows[:0]

    def _fit_length(
        self, rows: Ints, buffer: npt.NDArray[np.uint8], form: tuple[tuple[str, ...], int], may_define: bool
    ) -> Ints:
        """The same for entries of one length."""
        names, length = form
        words = _words(buffer, self.start_N[rows], length) if form in _LAYOUTS else None
        for layout in _LAYOUTS.get(form, ()) if words is not None else ():
            rows, words = self._take(rows, words, layout)
            if not len(rows):
                return rows
        unfit: list[int] = []
        while len(rows):
            at = int(self.start_N[rows[0]])
            sample = buffer[at : at + length].tobytes()
            made = None if may_define and b"X" in sample else self._new_layout(sample, names)
            left = rows if made is None else self._take(rows, _words(buffer, self.start_N[rows], length), made)[0]
            if len(left) and left[0] == rows[0]:
                unfit.append(int(rows[0]))
                left = rows[1:]
            rows = left
        return np.array(unfit, np.int64)

    def _new_layout(self, sample: bytes, names: tuple[str, ...]) -> Layout | None:
        self._new += 1
        if self._new > _MAX_NEW + len(self.start_N) // 64:
            return None
        try:
            layout = Layout.of(sample, names)
        except Quirk:
            return None
        if sum(map(len, _LAYOUTS.values())) >= _MAX_LAYOUTS:
            _LAYOUTS.clear()
        _LAYOUTS.setdefault((names, len(sample)), []).append(layout)
        return layout

    def _take(self, rows: Ints, words: npt.NDArray[np.uint64], layout: Layout) -> tuple[Ints, npt.NDArray[np.uint64]]:
        """Reads the entries that have this layout; returns the others."""
        expected = self._expected(layout, int(self._form_F[self.dump_N[rows[0]]]))
        differs = expected[self.dump_N[rows]]
        differs ^= words
        differs &= layout.fixed.view(np.uint64)
        good = np.bitwise_or.reduce(differs, axis=1) == 0
        if not good.any():
            return rows, words
        rest = (rows[:0], words[:0])
        if not good.all():
            rest = (rows[~good], words[~good])
            rows, words = rows[good], words[good]
        wanted = self.wanted_N[rows] | self.is_moved_N[rows]
        self.layout_N[rows] = len(self.layouts)
        if not wanted.all():
            rows, words = rows[wanted], words[wanted]
        if len(rows):
            self._read(rows, words, layout)
        self.layouts.append(layout)
        return rest

    def _expected(self, layout: Layout, form: int) -> npt.NDArray[np.uint64]:
        """The fixed bytes of each dump, of shape [F, W / 8]."""
        keys = self._keys[form]
        made = np.repeat(layout.pattern[None], len(keys), axis=0)
        short = [i for i, key in enumerate(layout.keys) if not key.is_long]
        made[:, [layout.keys[i].offset + 1 for i in short]] = keys[:, short]
        made[(keys[:, short] > 0xFF).any(axis=1), 0] = 0
        for i, key in enumerate(layout.keys):
            if key.is_long:
                made[:, key.offset + 1 : key.offset + 5] = keys[:, i : i + 1].view(np.uint8)
        return made.view(np.uint64)

    def _read(self, rows: Ints, words: npt.NDArray[np.uint64], layout: Layout) -> None:
        """The values of entries of one layout."""
        raw = words.view(np.uint8)
        for name, number in layout.numbers.items():
            values = _ints(raw, number)
            if number.op in (INT4, LONG) and values.min() < 0:
                self.quirky_F[self.dump_N[rows[values < 0]]] = True
            if name in NUMBERS:
                self.numbers[name][rows] = values
        for name, got in layout.texts.items():
            self.texts[name][rows] = _gets(raw, got)
        for name, offset in layout.flags.items():
            self.flags[name][rows] = raw[:, offset] == 0x88
        for name, (begin, end) in layout.spans.items():
            if end - begin > 3:
                self.spans[name][rows] = _digest(words, begin, end)
        if layout.dtypes:
            self._read_dtypes(rows, raw, layout.dtypes)
        if layout.others:
            self.texts["others"][rows] = np.maximum.reduce([_gets(raw, got) for got in layout.others])

    def _read_dtypes(self, rows: Ints, raw: npt.NDArray[np.uint8], gets: Sequence[Got]) -> None:
        first = _gets(raw, gets[0])
        self.texts["dtype"][rows] = first
        if len(gets) == 1:
            return
        columns = np.stack([_gets(raw, got) for got in gets], axis=1)
        for i in np.flatnonzero((columns != columns[:, :1]).any(axis=1)).tolist():
            self.mixed_dtypes[int(rows[i])] = tuple(columns[i].tolist())

    def _move(self, rows: Ints) -> None:
        """Replaces what entries define by GETs, in their order, and notes where the memo ended."""
        ends: list[tuple[int, int]] = []
        parts: list[bytes] = []
        size = 0
        for row in rows.tolist():
            dump = int(self.dump_N[row])
            if self.quirky_F[dump]:
                continue
            head = self.heads[dump]
            try:
                moved = head.first if self.start_N[row] == head.at else self._normal(row, head.memo)
            except Quirk:
                self.quirky_F[dump] = True
                continue
            self.start_N[row], self.length_N[row], self.is_moved_N[row] = size, len(moved), True
            parts.append(moved)
            size += len(moved)
            ends.append((row, head.memo.end))
        self.extra = np.frombuffer(b"".join((*parts, bytes(PAD))), np.uint8)
        self._limit(ends)

    def _normal(self, row: int, memo: Memo) -> bytes:
        try:
            return normalised(self._row(row), memo)
        except IndexError as error:
            raise Quirk("an entry is cut") from error

    def _limit(self, ends: Sequence[tuple[int, int]]) -> None:
        """Up to where the memo is filled behind each entry."""
        self.limit_N = np.zeros(len(self.start_N), np.int64)
        for row, end in ends:
            self.limit_N[row] = end
        for row in np.flatnonzero(np.diff(self.dump_N, prepend=-1)).tolist():
            self.limit_N[row] = max(int(self.limit_N[row]), self.heads[self.dump_N[row]].first_limit)
        self.limit_N += self.dump_N << 32
        np.maximum.accumulate(self.limit_N, out=self.limit_N)
        self.limit_N &= 0xFFFFFFFF


def _words(buffer: npt.NDArray[np.uint8], start_n: Ints, length: int) -> npt.NDArray[np.uint64]:
    """The entries that begin at these places as rows of words, of shape [n, W / 8]; bytes beyond `length` are others'."""
    width = -(-length // 8) * 8
    rows: npt.NDArray[Any] = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return rows[start_n].view(np.uint64).reshape(len(start_n), width // 8)


def _ints(raw: npt.NDArray[np.uint8], number: Number) -> npt.NDArray[Any]:
    start, kind, _ = INTS[number.op]
    return _strided(raw, number.offset + start, kind)


def _gets(raw: npt.NDArray[np.uint8], got: Got) -> npt.NDArray[Any]:
    return _strided(raw, got.offset + 1, "<i4" if got.is_long else "u1")


def _strided(raw: npt.NDArray[np.uint8], offset: int, kind: str) -> npt.NDArray[Any]:
    return np.ndarray((len(raw),), kind, raw, offset, (raw.shape[1],))


def _digest(words: npt.NDArray[np.uint64], begin: int, end: int) -> npt.NDArray[np.uint64]:
    """A number for the bytes from `begin` to `end`: equal ones have equal numbers, others have not (to 2**-33)."""
    first, last = begin // 8, -(-end // 8)
    part = words[:, first:last].copy()
    mask = np.zeros((last - first) * 8, np.uint8)
    mask[begin - first * 8 : end - first * 8] = 0xFF
    part &= mask.view(np.uint64)
    part ^= part >> np.uint64(32)
    made: npt.NDArray[np.uint64] = part @ _FACTORS[: last - first] + np.uint64(end - begin)
    return made | np.uint64(1)
