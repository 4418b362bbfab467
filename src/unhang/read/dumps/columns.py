"""The entries of many dumps as columns of raw values: each layout is cut out of all its entries at once.

Legend of shapes: N entries of the batch, F dumps, n entries of one length, W their bytes, padded to whole words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from unhang.model.calls import Sizes
from unhang.numeric import PAD, Bytes, Ints, digest, factors, np, npt, strided, words_at
from unhang.read.dumps.definitions import NAMELESS, Defined, Memos, Texts, make_plain
from unhang.read.dumps.head import Head
from unhang.read.dumps.layouts import INT4, INTS, LONG, Irregular, Layout, Number, keys_of

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
_MAX_LAYOUTS = 4096
_MAX_NEW = 128  # in one batch, and one more for as many entries
_AT_ONCE = 2048  # entries that fit in the processor's cache
_DEFINES = re.compile(rb"X..\0\0|u[qr]", re.DOTALL)
_LAYOUTS: dict[tuple[tuple[str, ...], int], list[Layout]] = {}


@dataclass
class Batch:
    """Entries of several dumps in one buffer, and what stands in them.

    `start_N`, `length_N`: where each entry lies; `dump_N`: whose it is. `is_moved_N`: entries that define something; what is
    left of them lies in `extra`.
    `memos`: where only tails were read, the texts that they can use; `first_F`: then the first record of each dump.
    `limit_N`: the memo's end behind the entry. `slot_N`: where its numbers stand in the columns, whose order is that of
    reading, and its `signature`: entries of a dump with equal ones say the same but for numbers.
    """

    buffer: Bytes
    heads: Sequence[Head]
    start_N: Ints
    length_N: Ints
    dump_N: Ints
    known: Texts
    irregular_F: npt.NDArray[np.bool_] = field(init=False)
    memos: Memos | None = None
    first_F: Ints | None = None
    limit_N: Ints = field(init=False)
    is_moved_N: npt.NDArray[np.bool_] = field(init=False)
    layout_N: npt.NDArray[np.int32] = field(init=False)
    slot_N: Ints = field(init=False)
    defined: Defined = field(default_factory=Defined)
    extra: Bytes = field(default_factory=lambda: np.zeros(PAD, np.uint8))
    made: Bytes = field(default_factory=lambda: np.zeros(PAD, np.uint8))
    layouts: list[Layout] = field(default_factory=list)
    numbers: dict[str, Ints] = field(default_factory=dict)
    signature: npt.NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.start_N)
        self.irregular_F = np.zeros(len(self.heads), bool)
        self.is_moved_N = np.zeros(count, bool)
        self.limit_N = np.zeros(count, np.int64)
        self.layout_N = np.full(count, -1, np.int32)
        self.slot_N = np.full(count, -1, np.int64)
        self.numbers = {name: np.full(count, default, np.int64) for name, default in NUMBERS.items()}
        self.signature = np.zeros(count, np.uint64)
        self._new = self._slots = 0
        self._expected: dict[int, npt.NDArray[np.uint64]] = {}

    def decode(self) -> None:
        """Fills the columns. Dumps that need the slow way become irregular."""
        if self.memos is not None:
            self._decode_tails(self.memos)
            return
        is_first = np.diff(self.dump_N, prepend=-1) != 0
        firsts = np.flatnonzero(is_first & ~self.irregular_F[self.dump_N])
        self._move(firsts)
        self._read_names(firsts)
        rest = np.flatnonzero(~is_first & ~self.irregular_F[self.dump_N])
        self._fit_moved(self._fit(rest, self.buffer))
        limit = self.limit_N + (self.dump_N << 32)
        self.limit_N = np.maximum.accumulate(limit) & 0xFFFFFFFF

    def _fit_moved(self, rows: Ints) -> None:
        """Reads entries that define something, and what was moved before."""
        self._move(np.sort(rows))
        moved = np.flatnonzero(self.is_moved_N & ~self.irregular_F[self.dump_N])
        self.irregular_F[self.dump_N[self._fit(moved, self.extra)]] = True

    def _decode_tails(self, memos: Memos) -> None:
        """The same where only tails were read. Their first entries are as plain as most."""
        firsts = np.flatnonzero(np.diff(self.dump_N, prepend=-1) != 0)
        self._set_forms()
        while len(firsts := firsts[~self.irregular_F[self.dump_N[firsts]] & (self._form_F[self.dump_N[firsts]] < 0)]):
            dump = int(self.dump_N[firsts[0]])
            try:
                numbers = keys_of(self._row(int(firsts[0])))
            except Irregular:
                self.irregular_F[dump] = True
                continue
            texts = memos.texts_of(dump, numbers)
            if -1 in texts or len({*texts}) != len(texts):
                self.irregular_F[dump] = True
                continue
            self._add_form(tuple(self.known.values_S[t] for t in texts), memos, texts)
        rows = np.flatnonzero(~self.irregular_F[self.dump_N])
        self._fit_moved(self._fit(rows, self.buffer))
        self.limit_N[:] = memos.width

    def _set_forms(self) -> None:
        self._forms: dict[tuple[str, ...], int] = {}
        self._form_F = np.full(len(self.heads), -1)
        self._keys: list[npt.NDArray[np.uint32]] = []

    def _add_form(self, names: tuple[str, ...], memos: Memos, texts: Sequence[int]) -> None:
        """All dumps that know these names are taken to have them in this order; entries that have not do not fit."""
        keys = np.stack([memos.numbers_of(text) for text in texts], axis=1)
        self._form_F[(keys >= 0).all(axis=1) & (self._form_F < 0)] = len(self._forms)
        self._forms[names] = len(self._forms)
        self._keys.append(keys.astype(np.uint32))

    def _read_names(self, firsts: Ints) -> None:
        """The fields of each dump's entries, which its first one names."""
        self._set_forms()
        known: dict[int, Layout] = {}
        for row in firsts.tolist():
            dump = int(self.dump_N[row])
            if self.irregular_F[dump]:
                continue
            at = self.start_N[row]
            try:
                self.heads[dump].read_first(self.extra[at : at + self.length_N[row]].tobytes(), known)
            except Irregular:
                self.irregular_F[dump] = True
        self._form_F = np.array([self._forms.setdefault(h.names, len(self._forms)) for h in self.heads])
        self._keys = [np.zeros((len(self.heads), len(names)), np.uint32) for names in self._forms]
        for dump, head in enumerate(self.heads):
            self._keys[self._form_F[dump]][dump] = head.keys

    def _move(self, rows: Ints) -> None:
        """Replaces what entries define by GETs. `rows` are in the order of the pickles."""
        if not len(rows):
            return
        plain = make_plain(
            list(map(self._row, rows.tolist())),
            self.dump_N[rows],
            [head.memo for head in self.heads],
            self.known,
            self.defined,
            self.irregular_F,
        )
        begin = len(self.extra)
        self.extra, self.made = np.concatenate([self.extra, plain.data]), np.concatenate([self.made, plain.made])
        self.start_N[rows] = begin + np.cumsum(plain.size_n) - plain.size_n
        self.length_N[rows], self.limit_N[rows], self.is_moved_N[rows] = plain.size_n, plain.limit_n, True

    def sizes_at(self, name: str, row_n: Ints) -> list[Sizes]:
        """The sizes in these entries."""
        found: list[Sizes] = []
        places: list[Ints] = []
        for some, layout, raw in self.by_layout(row_n):
            columns = [[_ints(raw, number).tolist() for number in numbers] for numbers in layout.sizes.get(name, ())]
            scalars: list[tuple[int, ...]] = [()] * len(raw)
            dims = [list(zip(*part, strict=True)) if part else scalars for part in columns]
            found += zip(*dims, strict=True) if dims else cast(list[Sizes], scalars)
            places.append(some)
        order = np.argsort(np.concatenate(places)) if places else np.zeros(0, np.int64)
        return [found[i] for i in order.tolist()]

    def frame_gets(self, row_n: Ints) -> tuple[Ints, Ints, Ints]:
        """The numbers of the frames of entries, one stack behind the other; how many each has; which entries, in order."""
        parts = [(some, layout.frames_in(raw)) for some, layout, raw in self.by_layout(row_n)]
        if not parts:
            return row_n, row_n, row_n
        sizes = np.concatenate([np.full(len(some), gets.shape[1]) for some, gets in parts])
        order = np.concatenate([some for some, _ in parts])
        return np.concatenate([gets.ravel() for _, gets in parts]), sizes, order

    def by_layout(self, row_n: Ints) -> Iterator[tuple[Ints, Layout, Bytes]]:
        """The entries of each layout: their places in `row_n`, and their bytes."""
        key = self.layout_N[row_n]
        order = np.argsort(key, kind="stable")
        cuts = [*np.flatnonzero(np.diff(key[order], prepend=-1)).tolist(), len(row_n)]
        for begin, end in pairwise(cuts):
            some = order[begin:end]
            layout, rows = self.layouts[key[some[0]]], row_n[some]
            buffer = self.extra if self.is_moved_N[rows[0]] else self.buffer
            yield some, layout, words_at(buffer, self.start_N[rows], layout.length).view(np.uint8)

    def _row(self, row: int) -> bytes:
        at = self.start_N[row]
        return self.buffer[at : at + self.length_N[row]].tobytes()

    def _fit(self, rows: Ints, buffer: Bytes) -> Ints:
        """Reads the entries of known or new layouts; returns the others."""
        if not len(rows):
            return rows
        length_N = self.length_N[rows]
        key = self._form_F[self.dump_N[rows]] << 32 | length_N
        small = length_N if len(self._forms) == 1 else key  # sixteen bits are sorted in linear time
        order = np.argsort(small.astype(np.min_scalar_type(int(small.max()))), kind="stable")
        rows, key = rows[order], key[order]
        is_cut = np.diff(key, prepend=-1) != 0
        is_cut[::_AT_ONCE] = True
        cuts = [*np.flatnonzero(is_cut).tolist(), len(rows)]
        names = list(self._forms)
        unfit = []
        for begin, end in pairwise(cuts):
            length, form = int(key[begin]) & 0xFFFFFFFF, int(key[begin]) >> 32
            left = self._fit_length(rows[begin:end], buffer, (names[form], length))
            if len(left):
                unfit.append(left)
        return np.concatenate(unfit) if unfit else rows[:0]

    def _fit_length(self, rows: Ints, buffer: Bytes, form: tuple[tuple[str, ...], int]) -> Ints:
        """The same for entries of one length."""
        names, length = form
        if form in _LAYOUTS:
            words = words_at(buffer, self.start_N[rows], length)
            for layout in _LAYOUTS[form]:
                rows, words = self._take(rows, words, layout)
                if not len(rows):
                    return rows
        samples = [
            (row, buffer[at : at + length].tobytes())
            for row, at in zip(rows.tolist(), self.start_N[rows].tolist(), strict=True)
        ]
        unfit = [row for row, sample in samples if _DEFINES.search(sample)]
        samples = [pair for pair in samples if not _DEFINES.search(pair[1])] if unfit else samples
        while samples:
            row, sample = samples[0]
            made = self._new_layout(sample, names)
            if made is not None:
                some = np.array([row for row, _ in samples])
                left = set(self._take(some, words_at(buffer, self.start_N[some], length), made)[0].tolist())
                samples = [pair for pair in samples if pair[0] in left]
            if samples and samples[0][0] == row:
                unfit.append(row)
                samples = samples[1:]
        return np.array(unfit, np.int64)

    def _new_layout(self, sample: bytes, names: tuple[str, ...]) -> Layout | None:
        self._new += 1
        if self._new > _MAX_NEW + len(self.start_N) // _MAX_NEW:
            return None
        try:
            layout = Layout.of(sample, names)
        except Irregular:
            return None
        if sum(map(len, _LAYOUTS.values())) >= _MAX_LAYOUTS:
            _LAYOUTS.clear()
            self._expected.clear()
        _LAYOUTS.setdefault((names, len(sample)), []).append(layout)
        return layout

    def _take(self, rows: Ints, words: npt.NDArray[np.uint64], layout: Layout) -> tuple[Ints, npt.NDArray[np.uint64]]:
        """Reads the entries that have this layout; returns the others."""
        expected = self._expected.get(id(layout))
        if expected is None:
            expected = self._expected[id(layout)] = self._expect(layout, int(self._form_F[self.dump_N[rows[0]]]))
        differs = expected.take(self.dump_N[rows], axis=0)
        differs ^= words
        differs &= layout.fixed.view(np.uint64)
        rest = (rows[:0], words[:0])
        # Row by row takes seven times as long, and hardly any row differs.
        if np.bitwise_or.reduce(differs, axis=None):
            good = np.bitwise_or.reduce(differs, axis=1) == 0
            if not good.any():
                return rows, words
            rest = (rows[~good], words[~good])
            rows, words = rows[good], words[good]
        self.layout_N[rows] = len(self.layouts)
        if self.is_moved_N[rows[0]]:
            self._check_moved(rows, words.view(np.uint8), layout)
        self._read(rows, words, layout)
        self.layouts.append(layout)
        return rest

    def _expect(self, layout: Layout, form: int) -> npt.NDArray[np.uint64]:
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
        slots = slice(self._slots, self._slots + len(rows))
        self._slots = slots.stop
        self.slot_N[rows] = np.arange(slots.start, slots.stop)
        for name, number in layout.numbers.items():
            values = _ints(raw, number)
            if number.op in (INT4, LONG) and values.min() < 0:
                self.irregular_F[self.dump_N[rows[values < 0]]] = True
            if name in NUMBERS:
                self.numbers[name][slots] = values
        kind = factors()[-1:] * np.uint64(2 * id(layout) + int(self.is_moved_N[rows[0]]))
        self.signature[slots] = digest(words, layout.said) + kind

    def _check_moved(self, rows: Ints, raw: Bytes, layout: Layout) -> None:
        """What was taken for a definition must be a value, and have a higher number than all that is used before it."""
        made = words_at(self.made, self.start_N[rows], layout.length).view(np.uint8)[:, : layout.length]
        numbers = np.stack([strided(raw, got.offset + 1, got.kind) for got in layout.gets], axis=1).astype(np.int64)
        is_made = made[:, [got.offset for got in layout.gets]] == 1
        numbers[numbers >= NAMELESS] = -1
        highest = np.maximum.accumulate(numbers, axis=1)
        late = is_made[:, 1:] & (numbers[:, 1:] <= highest[:, :-1]) & (numbers[:, 1:] >= 0)
        bad = late.any(axis=1) | (is_made.sum(axis=1) != made.sum(axis=1, dtype=np.int64))
        self.irregular_F[self.dump_N[rows[bad]]] = True


def _ints(raw: Bytes, number: Number) -> npt.NDArray[Any]:
    start, kind, _ = INTS[number.op]
    return strided(raw, number.offset + start, kind)
