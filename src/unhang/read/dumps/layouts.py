"""The bytes of one entry as torch's C++ pickler writes them: which opcodes stand where, and which bytes are values.

An entry that brings nothing new into the memo is a fixed row of opcodes, so that thousands of entries have the same
bytes but for their values. An entry that defines strings or frames becomes such a row once each definition is replaced
by the GET that later entries use.

Source: torch/csrc/jit/serialization/pickler.cpp, torch 2.13; opcodes: Lib/pickletools.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from unhang.read.fields import INT64_MAX, encodable
from unhang.read.flight_entry import MAX_DIMENSIONS, MAX_FRAMES

DICT, LIST, MARK, SETITEMS, APPENDS, PAIR, NONE, FALSE, TRUE = b"}](ue\x86N\x89\x88"
GET, LONG_GET, PUT, LONG_PUT, TEXT = b"hjqrX"
INT1, INT2, INT4, LONG = b"KMJ\x8a"
INTS = {INT1: (1, "u1", 1), INT2: (1, "<u2", 2), INT4: (1, "<i4", 4), LONG: (2, "<i8", 8)}  # start, type, bytes
_WIDTHS = [0] * 256
for _op in (DICT, LIST, MARK, SETITEMS, APPENDS, PAIR, NONE, FALSE, TRUE):
    _WIDTHS[_op] = 1
_WIDTHS[INT1], _WIDTHS[INT2], _WIDTHS[INT4], _WIDTHS[LONG] = 2, 3, 5, 10
NAMELESS = 1 << 24  # numbers from here on stand for frames that the pickle did not memoise
MAX_RAW, MAX_ROW = 1 << 20, 1 << 15

FrameKey = tuple[str, int, str]


class Quirk(Exception):
    """Something that torch's pickler does not write, or that Python objects tell better: the slow way reads it."""


@dataclass(slots=True)
class Memo:
    """What the pickle has memoised so far; everything below `end`, nothing from there on."""

    texts: dict[int, str]
    end: int
    frames: dict[int, FrameKey] = field(default_factory=dict)
    nameless: int = NAMELESS

    def define(self, number: int, seen: int) -> None:
        """Notes a definition. What was used before it, up to `seen`, must have been defined."""
        if number < self.end or number <= seen or number >= NAMELESS:
            raise Quirk("the memo is not filled in order")
        self.end = number + 1


def normalised(row: bytes, memo: Memo) -> bytes:
    """The entry with GETs for definitions, which go into the memo.

    Raises:
        Quirk: it holds other opcodes, or uses the memo otherwise.
    """
    at, seen, kept, end = 2, -1, 0, len(row)
    parts: list[bytes] = []
    while at < end:
        op = row[at]
        if width := _WIDTHS[op]:
            if op == DICT:
                start, (got, at, seen) = at, _frame(row, at, memo, seen)
                parts += (row[kept:start], got)
                kept = at
                continue
            at += width
        elif op == GET:
            seen = max(seen, row[at + 1])
            at += 2
        elif op == LONG_GET:
            seen = max(seen, int.from_bytes(row[at + 1 : at + 5], "little"))
            at += 5
        elif op == TEXT:
            start, (text, at) = at, _text(row, at)
            got, number, at = _put(row, at)
            memo.define(number, seen)
            memo.texts[number] = text
            seen = number
            parts += (row[kept:start], got)
            kept = at
        else:
            raise Quirk(f"opcode {op}")
    if at != end or seen >= memo.end:
        raise Quirk("an entry is cut, or uses what is not defined")
    return b"".join((*parts, row[kept:])) if parts else row


def _text(row: bytes, at: int) -> tuple[str, int]:
    end = at + 5 + int.from_bytes(row[at + 1 : at + 5], "little")
    try:
        text = row[at + 5 : end].decode()
    except UnicodeDecodeError as error:
        raise Quirk("text that no terminal can take") from error
    return text, end


def _put(row: bytes, at: int) -> tuple[bytes, int, int]:
    """The GET of what is memoised here, its number, and where that ends."""
    op = row[at] if at < len(row) else 0
    if op == PUT and at + 1 < len(row):
        return b"h" + row[at + 1 : at + 2], row[at + 1], at + 2
    if op == LONG_PUT:
        return b"j" + row[at + 1 : at + 5], int.from_bytes(row[at + 1 : at + 5], "little"), at + 5
    raise Quirk("a definition that is not memoised")


def _frame(row: bytes, at: int, memo: Memo, seen: int) -> tuple[bytes, int, int]:
    """A frame's definition: the GET that stands for it, where it ends, and the highest number used so far."""
    at, values = at + 2, []
    if row[at - 1] != MARK:
        raise Quirk("a frame without fields")
    while at < len(row) and row[at] != SETITEMS:
        op = row[at]
        if op in (GET, LONG_GET):
            size = 2 if op == GET else 5
            number = int.from_bytes(row[at + 1 : at + size], "little")
            seen, at = max(seen, number), at + size
            values.append(memo.texts.get(number))
        elif op == TEXT:
            text, at = _text(row, at)
            _, number, at = _put(row, at)
            memo.define(number, seen)
            memo.texts[number] = text
            seen = number
            values.append(text)
        elif op in INTS:
            values.append(_int_at(row, at))
            at += _WIDTHS[op]
        else:
            raise Quirk("a frame of another form")
    if len(values) != 6 or {*values[::2]} != {"name", "filename", "line"}:
        raise Quirk("a frame with other fields")
    fields = dict(zip(values[::2], values[1::2], strict=True))
    key = (fields["filename"], fields["line"], fields["name"])
    if type(key[0]) is not str or type(key[1]) is not int or type(key[2]) is not str:
        raise Quirk("a frame with values of other types")
    at += 1
    if at < len(row) and row[at] in (PUT, LONG_PUT):
        got, number, at = _put(row, at)
        memo.define(number, seen)
        seen = number
    else:
        memo.nameless, number = memo.nameless + 1, memo.nameless
        got = b"j" + number.to_bytes(4, "little")
    memo.frames[number] = (key[0], key[1] if 0 <= key[1] <= INT64_MAX else 0, key[2])
    return got, at, seen


def _int_at(row: bytes, at: int) -> int:
    start, _, size = INTS[row[at]]
    if row[at] == LONG and row[at + 1] != 8:
        raise Quirk("a number of another width")
    return int.from_bytes(row[at + start : at + start + size], "little", signed=row[at] in (INT4, LONG))


def entry_end(data: bytes, at: int) -> int:
    """Where the entry that begins here ends.

    Raises:
        Quirk: it does not, or holds other opcodes.
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
    raise Quirk("the last entry does not end")


class Got(NamedTuple):
    """A GET of the memo as a value."""

    offset: int
    is_long: bool


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
        Quirk: it defines something, or holds other opcodes.
    """
    at, pairs = 2, []
    if row[:2] != b"}(" or len(row) > MAX_ROW:
        raise Quirk("no entry")
    try:
        while row[at] != SETITEMS:
            key, at = _value(row, at, 0)
            value, at = _value(row, at, 0)
            if not isinstance(key, Got):
                raise Quirk("a key that is no string")
            if isinstance(value, Got) and row[at] in (GET, LONG_GET):
                second, after = _value(row, at, 0)
                if row[after] == PAIR:
                    value, at = Items([value, second], value.offset, after + 1, True), after + 1
            pairs.append((key, value))
    except IndexError as error:
        raise Quirk("an entry is cut") from error
    if at + 1 != len(row):
        raise Quirk("an entry is no dictionary alone")
    return pairs


def _value(row: bytes, at: int, depth: int) -> tuple[Value, int]:
    op = row[at]
    if op in (GET, LONG_GET):
        return Got(at, op == LONG_GET), at + (2 if op == GET else 5)
    if op in INTS:
        _int_at(row, at)
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
    raise Quirk(f"opcode {op} in an entry")


_NUMBERS = (
    "record_id", "pg_id", "seq_id", "collective_seq_id", "p2p_seq_id", "time_created_ns",
    "time_discovered_started_ns", "time_discovered_completed_ns", "timeout_ms",
)  # fmt: skip
_TEXTS = ("profiling_name", "state", "thread_name", "thread_id")


@dataclass(slots=True)
class Layout:
    """Where the values of entries of one form stand, `length` bytes each. `fixed`: bytes that all of them share.

    `keys`: the GETs of the field names, which each pickle numbers otherwise. `texts`, `dtypes`: GETs of values;
    `others`: GETs that are checked and not used.
    """

    length: int
    keys: list[Got]
    pattern: npt.NDArray[np.uint8]
    fixed: npt.NDArray[np.uint8]
    numbers: dict[str, Number] = field(default_factory=dict)
    texts: dict[str, Got] = field(default_factory=dict)
    dtypes: list[Got] = field(default_factory=list)
    others: list[Got] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, row: bytes, names: tuple[str, ...]) -> Layout:
        """The layout of a normalised entry whose fields have these names.

        Raises:
            Quirk: a field is missing or of another type.
        """
        pairs = values_of(row)
        width = -(-len(row) // 8) * 8
        pattern, fixed = np.zeros(width, np.uint8), np.zeros(width, np.uint8)
        pattern[: len(row)] = np.frombuffer(row, np.uint8)
        fixed[: len(row)] = 0xFF
        made = cls(len(row), [key for key, _ in pairs], pattern, fixed)
        if len(names) != len(pairs):
            raise Quirk("entries with other fields")
        for name, (_, value) in zip(names, pairs, strict=True):
            made._loosen(value)
            made._take(name, value)
        if "collective_seq_id" not in names and "seq_id" in made.numbers:
            made.numbers["collective_seq_id"] = made.numbers["seq_id"]
        if not {"profiling_name", "state", "group", "desc"} <= made.texts.keys() or "record_id" not in made.numbers:
            raise Quirk("entries lack a field")
        return made

    def _loosen(self, value: Value) -> None:
        """The bytes of a value may differ; booleans differ in one bit of their opcode."""
        if isinstance(value, Got):
            self.fixed[value.offset + 1 : value.offset + (5 if value.is_long else 2)] = 0
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
        elif name == "input_dtypes" and isinstance(value, Items) and not value.is_pair and _are_gets(value):
            self.dtypes = [v for v in value.values if isinstance(v, Got)]
        elif name == "frames" and isinstance(value, Items) and _are_frames(value):
            self.spans[name] = (value.start, value.end)
        elif name in _CHECKED and (value is not None or name in ("profiling_name", "state", "process_group")):
            raise Quirk(f"{name} of another type")
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


def sizes_of(span: bytes) -> tuple[tuple[int, ...], ...]:
    """The list of lists of numbers in these bytes, which a layout has found."""
    value, _ = _value(span, 0, 0)
    if not isinstance(value, Items):
        raise Quirk("sizes are no list")
    return tuple(
        tuple(_int_at(span, v.offset) for v in dims.values if isinstance(v, Number))
        for dims in value.values
        if isinstance(dims, Items)
    )


def gets_of(span: bytes) -> list[int]:
    """The numbers that a list of GETs gets."""
    at, numbers = 2, []
    while span[at] != APPENDS:
        size = 2 if span[at] == GET else 5
        numbers.append(int.from_bytes(span[at + 1 : at + size], "little"))
        at += size
    return numbers


def is_plain(text: str) -> bool:
    """Whether a terminal and a file can take it."""
    return text.isascii() or encodable(text) == text
