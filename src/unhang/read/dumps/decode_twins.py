"""Dumps that say what another one says, but for times and the names of groups and threads: most ranks make the same calls.

All else of such a dump is byte by byte that of the other one, so its opcodes are the same ones, and need not be decoded
again: it takes over the columns, and only times are read. Where the bytes differ in anything else, it is no twin.

Legend of shapes: n entries of one dump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from unhang.model.calls import CALL_COLUMNS
from unhang.read.dumps.columns import Ints
from unhang.read.dumps.decode_rows import Columns, Names
from unhang.read.dumps.decode_window import Loaded
from unhang.read.dumps.definitions import MAX_TEXT

OF_GROUPS = ("group", "desc")
OF_THREADS = ("thread_name", "thread_id")
_MOST_BYTES = 4 * MAX_TEXT
_LONG_BYTES = 8
TEXT_START = 5


class Defined(NamedTuple):
    """A definition of a name in a dump: where it begins, counted from the first entry, and its text."""

    at: int
    text: str


class Told(NamedTuple):
    """What entries say: the different values, and the number of each entry's one."""

    values: Sequence[Any]
    codes_n: Ints


@dataclass
class Twin:
    """A decoded dump, which others may equal.

    `known`: the memo's end before the entries. `raw`: the bytes from the first entry on, in which times are overwritten
    by those of others. `columns`: those that no other dump can have otherwise; `told`: columns of numbers that a shard
    gives. `times`: of each column, which entries have such a time, and where. `named`: definitions that may differ.
    `given`: texts by their numbers that entries may take from the head. `same`: texts that must not differ.
    """

    known: int
    raw: bytearray
    frames: bool
    columns: Columns
    told: Mapping[str, Told]
    times: Mapping[str, tuple[Ints, Ints]]
    named: Sequence[Defined]
    given: Sequence[tuple[int, str]]
    same: Mapping[str, str]
    _names: Names | None = None
    _numbered: Columns = field(default_factory=dict)

    def __post_init__(self) -> None:
        places = [int(at.min()) for _, at in self.times.values()] + [part.at + 1 for part in self.named]
        self._first = min(places, default=len(self.raw))
        begins = [0, *(part.at + TEXT_START + len(part.text.encode()) for part in self.named)]
        ends = [*(part.at + 1 for part in self.named), len(self.raw)]
        self._cuts = list(zip(begins, ends, strict=True))
        behind = {name: np.searchsorted(begins, at, side="right") - 1 for name, (_, at) in self.times.items()}
        self._definitions_before = behind
        self._numbers: Ints = np.ndarray((len(self.raw) - _LONG_BYTES + 1,), "<i8", self.raw, strides=(1,))

    def columns_of(self, dump: Loaded, names: Names) -> Columns | None:
        """The columns of a dump, None where it is no twin."""
        head, data = dump.head, dump.data
        if head.known != self.known or not data.startswith(memoryview(self.raw)[: self._first], head.start):
            return None
        found = self._names_of(dump)
        if found is None:
            return None
        texts, shifts = found
        times = self._times_of(dump, shifts)
        if times is None:
            return None
        if any(names.texts[other] < 0 for text, other in texts.items() if other != text):
            return None
        columns = {**self._shared(names), **self._named_columns(texts, names)}
        for name, values in times.items():
            rows = self.times[name][0]
            if len(rows) < len(columns[name]):
                columns[name] = columns[name].copy()
                columns[name][rows] = values
            else:
                columns[name] = values
        return columns

    def _names_of(self, dump: Loaded) -> tuple[dict[str, str], list[int]] | None:
        """What stands in this dump for each text, and by how much bytes are shifted behind each definition."""
        texts = dict(self.same)
        for number, text in self.given:
            other = dump.head.memo.texts.get(number)
            if other is None or texts.setdefault(text, other) != other:
                return None
        start, shifts = dump.head.start, [0]
        for at, text in self.named:
            begin = start + at + shifts[-1] + TEXT_START
            size = int.from_bytes(dump.data[begin - 4 : begin], "little")
            try:
                other = dump.data[begin : begin + size].decode() if size <= _MOST_BYTES else None
            except UnicodeDecodeError:
                return None
            if other is None or texts.setdefault(text, other) != other:
                return None
            shifts.append(shifts[-1] + size - len(text.encode()))
        is_whole = len(dump.data) - start == len(self.raw) + shifts[-1]
        return (texts, shifts) if is_whole else None

    def _times_of(self, dump: Loaded, shifts: Sequence[int]) -> dict[str, Ints] | None:
        """The times, None where the dump has other bytes than these."""
        data, start = dump.data, dump.head.start
        numbers: Ints = np.ndarray((len(data) - _LONG_BYTES + 1,), "<i8", data, strides=(1,))
        found = {}
        for name, (_, at) in self.times.items():
            shift = np.array(shifts)[self._definitions_before[name]] if any(shifts) else 0
            found[name] = values = numbers[at + (shift + start)]
            if values.min() < 0:
                return None
            self._numbers[at] = values
        view = memoryview(self.raw)
        for (begin, end), moved in zip(self._cuts, shifts, strict=True):
            if not data.startswith(view[begin:end], start + begin + moved):
                return None
        return found

    def _shared(self, names: Names) -> Columns:
        """The columns that all twins of a shard share."""
        if self._names is not names:
            values = {name: told.values for name, told in self.told.items()}
            numbers = {
                "op": [names.ops[op] for op in values["op"]],
                "dtype": [names.dtypes[dtype] for dtype in values["dtype"]],
                "in_sizes": [names.sizes[sizes] for sizes in values["in_sizes"]],
                "out_sizes": [names.sizes[sizes] for sizes in values["out_sizes"]],
                "frames": [-1 if stack is None else names.stack(stack) for stack in values["frames"]],
                "backend_text": [names.texts[text] for text in values["backend"]],
            }
            columns = {**self.columns}
            for name, numbers_of in numbers.items():
                codes_n = self.told[name.removesuffix("_text")].codes_n
                columns[name] = np.array(numbers_of, CALL_COLUMNS.get(name, "i8"))[codes_n]
            self._names, self._numbered = names, columns
        return self._numbered

    def _named_columns(self, texts: Mapping[str, str], names: Names) -> Columns:
        """The columns of groups and threads."""
        made = {}
        for name in OF_GROUPS:
            values, codes_n = self.told[name]
            made[f"{name}_text"] = np.array([names.texts[texts[value]] for value in values])[codes_n]
        values, codes_n = self.told["thread"]
        threads = [" ".join(texts[part] for part in pair if texts[part]) for pair in values]
        made["thread"] = np.array([names.threads[text] for text in threads], np.int32)[codes_n]
        return made
