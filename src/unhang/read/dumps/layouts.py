"""The bytes of one entry as torch's C++ pickler writes them: which opcodes stand where, and which bytes are values.

An entry that brings nothing new into the memo is a fixed row of opcodes, so that thousands of entries have the same
bytes but for their values.

Source: torch/csrc/jit/serialization/pickler.cpp, torch 2.13; opcodes: Lib/pickletools.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from unhang.numeric import np, npt
from unhang.read.dumps.entries import MAX_DIMENSIONS, MAX_FRAMES

DICT, LIST, MARK, SETITEMS, APPENDS, PAIR, NONE, FALSE, TRUE = b"}](ue\x86N\x89\x88"
GET, LONG_GET, PUT, LONG_PUT, TEXT = b"hjqrX"
INT1, INT2, INT4, LONG = b"KMJ\x8a"
INTS = {INT1: (1, "u1", 1), INT2: (1, "<u2", 2), INT4: (1, "<i4", 4), LONG: (2, "<i8", 8)}  # start, type, bytes
_WIDTHS = [0] * 256
for _op in (DICT, LIST, MARK, SETITEMS, APPENDS, PAIR, NONE, FALSE, TRUE):
    _WIDTHS[_op] = 1
_WIDTHS[INT1], _WIDTHS[INT2], _WIDTHS[INT4], _WIDTHS[LONG] = 2, 3, 5, 10
MAX_ROW = 1 << 15
EMPTY = 3  # bytes of a list without members


class Irregular(Exception):
    """Something that torch's pickler does not write, or that that columns cannot hold: it is read through Python objects."""


def int_at(row: bytes, at: int) -> int:
    """The integer that begins here.

    Raises:
        Irregular: it is written otherwise than torch does.
    """
    start, _, size = INTS[row[at]]
    if row[at] == LONG and row[at + 1] != 8:
        raise Irregular("a number of another width")
    return int.from_bytes(row[at + start : at + start + size], "little", signed=row[at] in (INT4, LONG))


def entry_end(data: bytes, at: int) -> int:
    """Where the entry that begins here ends.

    Raises:
        Irregular: it does not, or holds other opcodes.
    """
    depth, size = 0, len(data)
    while at < size:
        op = data[at]
        if op == TEXT:
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        elif op in (GET, PUT):
            at += 2
        elif op in (LONG_GET, LONG_PUT):
            at += 5
        elif width := _WIDTHS[op]:
            at += width
            if op == MARK:
                depth += 1
            elif op in (SETITEMS, APPENDS):
                depth -= 1
                if depth == 0:
                    return at
        else:
            break
    raise Irregular("the last entry does not end")


class Got(NamedTuple):
    """A GET of the memo as a value."""

    offset: int
    is_long: bool

    @property
    def kind(self) -> str:
        """Of its number, as an array has it."""
        return "<u4" if self.is_long else "u1"


class Number(NamedTuple):
    """An integer as a value."""

    op: int
    offset: int


class Flag(NamedTuple):
    """A boolean as a value."""

    offset: int


class Items(NamedTuple):
    """A list or pair as a value; it takes the bytes from `start` to `end`."""

    values: list[Value]
    start: int
    end: int
    is_pair: bool = False


Value = Got | Number | Flag | Items | None


def values_of(row: bytes) -> list[tuple[Got, Value]]:
    """Keys and values of a normalised entry.

    Raises:
        Irregular: it defines something, or holds other opcodes.
    """
    at, pairs = 2, []
    if row[:2] != b"}(" or len(row) > MAX_ROW:
        raise Irregular("no entry")
    try:
        while row[at] != SETITEMS:
            key, at = _value(row, at, 0)
            value, at = _value(row, at, 0)
            if not isinstance(key, Got):
                raise Irregular("a key that is not a string")
            if isinstance(value, Got) and row[at] in (GET, LONG_GET):
                second, after = _value(row, at, 0)
                if row[after] == PAIR:
                    value, at = Items([value, second], value.offset, after + 1, True), after + 1
            pairs.append((key, value))
    except IndexError as error:
        raise Irregular("an entry is cut") from error
    if at + 1 != len(row):
        raise Irregular("an entry is not a single dictionary")
    return pairs


def keys_of(row: bytes) -> tuple[int, ...]:
    """The memo's numbers of the fields of a normalised entry.

    Raises:
        Irregular: it is none.
    """
    return tuple(_number(row, key) for key, _ in values_of(row))


def _number(row: bytes, got: Got) -> int:
    return int.from_bytes(row[got.offset + 1 : got.offset + (5 if got.is_long else 2)], "little")


def _value(row: bytes, at: int, depth: int) -> tuple[Value, int]:
    op = row[at]
    if op in (GET, LONG_GET):
        return Got(at, op == LONG_GET), at + (2 if op == GET else 5)
    if op in INTS:
        int_at(row, at)
        return Number(op, at), at + _WIDTHS[op]
    if op == NONE:
        return None, at + 1
    if op in (TRUE, FALSE):
        return Flag(at), at + 1
    if op == LIST and row[at + 1] == MARK and depth < 2:
        start, items, at = at, [], at + 2
        while row[at] != APPENDS:
            item, at = _value(row, at, depth + 1)
            items.append(item)
        return Items(items, start, at + 1), at + 1
    raise Irregular(f"opcode {op} in an entry")


_NUMBERS = (
    "record_id", "pg_id", "seq_id", "collective_seq_id", "p2p_seq_id", "time_created_ns",
    "time_discovered_started_ns", "time_discovered_completed_ns", "timeout_ms",
)  # fmt: skip
_TEXTS = ("profiling_name", "state", "thread_name", "thread_id")


@dataclass(slots=True)
class Layout:
    """Where the values of entries of one form stand, `length` bytes each. `fixed`: bytes that all of them share.

    `said`: those in which entries may differ, but for numbers. `keys`: the GETs of the field names, which each pickle numbers otherwise. `texts`, `dtypes`: GETs of values;
    `others`: GETs that are checked and not used. `gets`: all of them in their order. `frames`: those
    of the stack.
    """

    length: int
    keys: list[Got]
    pattern: npt.NDArray[np.uint8]
    fixed: npt.NDArray[np.uint8]
    said: npt.NDArray[np.uint8] = field(init=False)
    numbers: dict[str, Number] = field(default_factory=dict)
    texts: dict[str, Got] = field(default_factory=dict)
    dtypes: list[Got] = field(default_factory=list)
    others: list[Got] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    sizes: dict[str, list[list[Number]]] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    gets: list[Got] = field(default_factory=list)
    frames: list[Got] = field(default_factory=list)

    @classmethod
    def of(cls, row: bytes, names: tuple[str, ...]) -> Layout:
        """The layout of a normalised entry whose fields have these names.

        Raises:
            Irregular: a field is missing or of another type.
        """
        pairs = values_of(row)
        made = cls._blank(row, pairs)
        if len(names) != len(pairs):
            raise Irregular("entries with other fields")
        for name, (key, value) in zip(names, pairs, strict=True):
            made.gets.append(key)
            made._loosen(value)
            made._take(name, value)
        made.said = ~made.fixed
        made.said[len(row) :] = 0
        for _, value in pairs:
            if isinstance(value, Number):
                made.said[value.offset : value.offset + _WIDTHS[value.op]] = 0
        if "collective_seq_id" not in names and "seq_id" in made.numbers:
            made.numbers["collective_seq_id"] = made.numbers["seq_id"]
        if not {"profiling_name", "state", "group", "desc"} <= made.texts.keys() or "record_id" not in made.numbers:
            raise Irregular("entries lack a field")
        return made

    @classmethod
    def _blank(cls, row: bytes, pairs: Sequence[tuple[Got, Value]]) -> Layout:
        """One that all bytes are fixed of."""
        width = -(-len(row) // 8) * 8
        pattern, fixed = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
        pattern[: len(row)] = np.frombuffer(row, np.uint8)
        fixed[: len(row)] = 0xFF
        return cls(len(row), [key for key, _ in pairs], pattern, fixed)

    @classmethod
    def of_keys(cls, row: bytes) -> Layout:
        """Where the names of fields stand in a normalised entry, whatever they are.

        Raises:
            Irregular: it is none.
        """
        pairs = values_of(row)
        made = cls._blank(row, pairs)
        for key, value in pairs:
            made._loosen(key)
            made._loosen(value)
        return made

    def keys_in(self, row: bytes) -> tuple[int, ...] | None:
        """The numbers of the names of fields in a normalised entry; None where its layout is another one."""
        if len(row) != self.length:
            return None
        differs = np.frombuffer(row, np.uint8) ^ self.pattern[: len(row)]
        if (differs & self.fixed[: len(row)]).any():
            return None
        return tuple(_number(row, key) for key in self.keys)

    def frames_in(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """The numbers of the frames of entries, of shape [n, frames]. `raw`: their bytes, of shape [n, W]."""
        made = np.empty((len(raw), len(self.frames)), np.int64)
        is_long = np.array([got.is_long for got in self.frames], bool)
        offset = np.array([got.offset for got in self.frames], np.int64)
        made[:, ~is_long] = raw[:, offset[~is_long] + 1]
        long = raw[:, offset[is_long, None] + np.arange(1, 5)]
        made[:, is_long] = np.ascontiguousarray(long).view("<u4")[:, :, 0]
        return made

    def _loosen(self, value: Value) -> None:
        """The bytes of a value may differ; booleans differ in one bit of their opcode."""
        if isinstance(value, Got):
            self.fixed[value.offset + 1 : value.offset + (5 if value.is_long else 2)] = 0
            self.gets.append(value)
        elif isinstance(value, Number):
            start, _, size = INTS[value.op]
            self.fixed[value.offset + start : value.offset + start + size] = 0
        elif isinstance(value, Flag):
            self.fixed[value.offset] = 0xFE
        elif isinstance(value, Items):
            for item in value.values:
                self._loosen(item)

    def _take(self, name: str, value: Value) -> None:
        if name in _NUMBERS and isinstance(value, Number):
            self.numbers[name] = value
        elif name in _TEXTS and isinstance(value, Got):
            self.texts[name] = value
        elif name == "process_group" and isinstance(value, Items) and value.is_pair and _are_gets(value):
            self.texts["group"], self.texts["desc"] = (v for v in value.values if isinstance(v, Got))
        elif name in ("retired", "is_p2p") and isinstance(value, Flag):
            self.flags[name] = value.offset
        elif name in ("input_sizes", "output_sizes") and isinstance(value, Items) and _are_sizes(value):
            self.spans[name] = (value.start, value.end)
            self.sizes[name] = [
                [v for v in dims.values if isinstance(v, Number)] for dims in value.values if isinstance(dims, Items)
            ]
        elif name == "input_dtypes" and isinstance(value, Items) and not value.is_pair and _are_gets(value):
            self.dtypes = [v for v in value.values if isinstance(v, Got)]
        elif name == "frames" and isinstance(value, Items) and _are_frames(value):
            self.spans[name] = (value.start, value.end)
            self.frames = [v for v in value.values if isinstance(v, Got)]
        elif name in _CHECKED and (value is not None or name in ("profiling_name", "state", "process_group")):
            raise Irregular(f"{name} of another type")
        else:
            self._pass(value)

    def _pass(self, value: Value) -> None:
        if isinstance(value, Got):
            self.others.append(value)
        elif isinstance(value, Items):
            for item in value.values:
                self._pass(item)


_CHECKED = {
    *_NUMBERS, *_TEXTS, "process_group", "retired", "is_p2p", "input_sizes", "output_sizes", "input_dtypes", "frames",
}  # fmt: skip


def _are_gets(value: Items) -> bool:
    return all(isinstance(v, Got) for v in value.values)


def _are_frames(value: Items) -> bool:
    return not value.is_pair and _are_gets(value) and len(value.values) <= MAX_FRAMES


def _are_sizes(value: Items) -> bool:
    return not value.is_pair and all(
        isinstance(dims, Items)
        and not dims.is_pair
        and len(dims.values) <= MAX_DIMENSIONS
        and all(isinstance(v, Number) for v in dims.values)
        for dims in value.values
    )
