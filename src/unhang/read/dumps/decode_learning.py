"""What may differ between a decoded dump and its twins, and where it stands.

Legend of shapes: n entries of one dump, K those of them that differ in more than numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unhang.read.dumps.columns import Batch, Ints
from unhang.read.dumps.decode_rows import Columns, Rows
from unhang.read.dumps.decode_twins import OF_GROUPS, OF_THREADS, TEXT_START, Defined, Told, Twin
from unhang.read.dumps.decode_window import Loaded
from unhang.read.dumps.layouts import LONG, LONG_PUT, PUT, TEXT, Layout, Quirk, entry_end

_TIMES = {
    "created_ns": "time_created_ns",
    "started_ns": "time_discovered_started_ns",
    "completed_ns": "time_discovered_completed_ns",
}
_OF_FRAMES = ("name", "filename", "line")
_OF_SHARD = {
    "op", "dtype", "in_sizes", "out_sizes", "frames", "thread", "group_text", "desc_text", "backend_text",
}  # fmt: skip
_LONG_START = 2  # where the value of a LONG begins
_NAMELESS_GET = 5  # bytes of the GET that stands for a frame without a number


class Learning:
    """Finds where a decoded dump has what may differ in others."""

    def __init__(self, dump: Loaded, rows: Rows, f: int, frames: bool) -> None:
        self._dump, self._rows, self._f, self._frames = dump, rows, f, frames
        self._mine = slice(*np.searchsorted(rows.dump_N, (f, f + 1)).tolist())
        self._row_n = rows.row_N[self._mine]
        alike = rows.alike
        mine = np.flatnonzero(alike.dump_N == f)
        self._alike_K = mine[np.argsort(alike.row_N[mine])]
        place = np.zeros(len(alike.row_N), np.int64)
        place[self._alike_K] = np.arange(len(mine))
        self._codes_n = place[rows.codes_N[self._mine]]
        self._named: dict[int, Defined] = {}  # what entries define as a name, by its number

    def twin(self) -> Twin | None:
        """The dump as one that others may equal."""
        try:
            times = self._times()
        except (Quirk, IndexError):
            return None
        head = self._dump.head
        bound, free = self._texts()
        same, given, named = dict.fromkeys(bound), [], []
        for number, text in head.memo.texts.items():
            if number < head.known and (text in bound or text in free):
                given.append((number, text))
            elif text in free and number in self._named:
                named.append(self._named[number])
            elif text in free and number >= head.known:
                same[text] = None
        told, columns = self._told(), self._columns()
        raw = bytearray(self._dump.data[head.start :])
        return Twin(head.known, raw, self._frames, columns, told, times, sorted(named), given, {t: t for t in same})

    def _times(self) -> dict[str, tuple[Ints, Ints]]:
        """Of each column, the entries with a time of eight bytes, and where it stands."""
        batch, row_n = self._rows.batch, self._row_n
        in_layout = {
            name: np.array([_time_at(layout, field) for layout in batch.layouts]) for name, field in _TIMES.items()
        }
        begin_n = batch.start_N[row_n] - self._dump.head.at
        found: dict[str, list[tuple[int, int]]] = {name: [] for name in _TIMES}
        is_moved_n = batch.is_moved_N[row_n]
        end = 0
        for i in np.flatnonzero(is_moved_n).tolist():
            if i and not is_moved_n[i - 1]:
                end = int(begin_n[i - 1] + batch.length_N[row_n[i - 1]])
            moved = _Moved(self._dump, int(row_n[i]), end, batch)
            end = moved.end
            self._named.update(moved.named())
            for name in _TIMES:
                at = int(in_layout[name][batch.layout_N[row_n[i]]])
                if at >= 0:
                    found[name].append((i, moved.place(at)))
        times = {}
        for name, offsets in in_layout.items():
            at_n = offsets[batch.layout_N[row_n]]
            at_n = np.where((at_n >= 0) & ~is_moved_n, begin_n + at_n, -1)
            for i, at in found[name]:
                at_n[i] = at
            rows = np.flatnonzero(at_n >= 0)
            if len(rows):
                times[name] = rows, at_n[rows]
        return times

    def _texts(self) -> tuple[set[str], set[str]]:
        """The texts that must be the same in others, and those that need not."""
        alike, values = self._rows.alike, self._rows.names.texts.values_S

        def used(*columns: str) -> set[str]:
            return {values[s] for name in columns for s in {*alike.texts[name][self._alike_K].tolist()}}

        known = alike.batch.defined
        frames = {values[s] for s in {*known.frames[:2, known.dumps == self._f].ravel().tolist()}}
        bound = {"", *_OF_FRAMES, *self._dump.head.names} | frames
        bound |= used("profiling_name", "state", "dtype") | alike.mixed_dtypes(self._alike_K)
        return bound, used(*OF_GROUPS, *OF_THREADS) - bound

    def _told(self) -> dict[str, Told]:
        """What the entries say that a shard numbers, apart from its numbers."""
        names, columns, texts = self._rows.names, self._rows.alike.columns, self._rows.alike.texts
        values = names.texts.values_S
        frames = [(values[a], values[b], line) for a, b, line in names.frames]
        stacks = [*(tuple(frames[i] for i in stack) for stack in names.stacks), None]
        sizes = list(names.sizes)
        tables: dict[str, tuple[Sequence[Any], Ints]] = {
            "op": (list(names.ops), columns["op"]),
            "dtype": (list(names.dtypes), columns["dtype"]),
            "in_sizes": (sizes, columns["in_sizes"]),
            "out_sizes": (sizes, columns["out_sizes"]),
            "frames": (stacks, columns["frames"]),
            **{name: (values, texts[name]) for name in (*OF_GROUPS, "backend")},
        }
        told = {
            name: self._by_value([v[i] for i in column[self._alike_K].tolist()]) for name, (v, column) in tables.items()
        }
        pairs = zip(*([values[i] for i in texts[name][self._alike_K].tolist()] for name in OF_THREADS), strict=True)
        return {**told, "thread": self._by_value(list(pairs))}

    def _by_value(self, value_K: Sequence[Any]) -> Told:
        numbers: dict[Any, int] = {}
        code_K = np.array([numbers.setdefault(value, len(numbers)) for value in value_K])
        return Told(list(numbers), code_K[self._codes_n])

    def _columns(self) -> Columns:
        """The columns that hold no numbers of the shard."""
        columns = self._rows.whole()
        return {name: columns[name][self._mine].copy() for name in columns.keys() - _OF_SHARD}


class _Moved:
    """An entry that defines something: how it lies in the dump, and how without its definitions."""

    def __init__(self, dump: Loaded, row: int, begin: int, batch: Batch) -> None:
        self._dump, self._layout = dump, batch.layouts[batch.layout_N[row]]
        at, length = int(batch.start_N[row]), int(batch.length_N[row])
        self._steps: list[tuple[int, int, int]] = []  # a GET's place, that in the dump, how far bytes are shifted then
        shift = begin
        for get in np.flatnonzero(batch.made[at : at + length]).tolist():
            first = get + shift
            shift = self._put(first) - get
            self._steps.append((get, first, shift))
        self._begin, self.end = begin, length + shift

    def _put(self, first: int) -> int:
        """Where the PUT of a definition stands, or would."""
        data, start = self._dump.data, self._dump.head.start
        at = start + first
        if data[at] == TEXT:
            return first + TEXT_START + int.from_bytes(data[at + 1 : at + TEXT_START], "little")
        end = entry_end(data, at)
        return end - start - (0 if data[end] in (PUT, LONG_PUT) else _NAMELESS_GET)

    def place(self, at: int) -> int:
        """Where a byte of the plain entry stands in the dump."""
        return at + next((shift for get, _, shift in reversed(self._steps) if get < at), self._begin)

    def named(self) -> Iterator[tuple[int, Defined]]:
        """The names of groups and threads that it defines, by number."""
        data, start = self._dump.data, self._dump.head.start
        gets = {self._layout.texts[name].offset for name in (*OF_GROUPS, *OF_THREADS) if name in self._layout.texts}
        for get, first, shift in self._steps:
            put = start + get + shift
            if get in gets and data[start + first] == TEXT:
                width = 1 if data[put] == PUT else 4
                number = int.from_bytes(data[put + 1 : put + 1 + width], "little")
                yield number, Defined(first, data[start + first + TEXT_START : put].decode())


def _time_at(layout: Layout, name: str) -> int:
    """Where a time of eight bytes stands in entries of a layout, -1 where they have none."""
    number = layout.numbers.get(name)
    return number.offset + _LONG_START if number is not None and number.op == LONG else -1
