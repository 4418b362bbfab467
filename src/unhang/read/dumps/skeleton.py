"""The byte layout of one entry as torch's pickler writes it, found once and checked on every entry that claims to have it.

Once all strings are memoised, equal kinds of calls are written with equal opcodes at equal offsets; only the operands differ.
An entry whose opcodes are those of a skeleton is read exactly by taking the operands at the skeleton's offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

_WIDTHS = {b"K": 1, b"M": 2, b"J": 4, b"\x8a\x08": 8}
_TYPES = {1: "<u1", 2: "<u2", 4: "<i4", 8: "<i8"}
_NONE, _TRUE, _FALSE = 0x4E, 0x88, 0x89
UNKNOWN = -(1 << 62)  # None


class Irregular(Exception):
    """An entry that introduces strings, or is written in another way."""


@dataclass(frozen=True, slots=True)
class Value:
    """Where a value lies. `kind`: int, get (of the memo), constant (None or a truth value), pair (two gets), list.

    `offset`: of its first operand byte; `width`: of that operand; for a list the segment from its first to its last opcode.
    `second`: the other get of a pair.
    """

    kind: str
    offset: int
    width: int
    second: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Skeleton:
    """`keys`: place of each key's get; `values`: in the same order. `fixed`: bytes that every such entry has."""

    length: int
    keys: tuple[tuple[int, int], ...]
    names: tuple[int, ...]
    values: tuple[Value, ...]
    mask: Bytes
    expected: Bytes

    def fits(self, rows: Bytes) -> npt.NDArray[np.bool_]:
        """`[N]`: which of the rows `[N, length]` have these opcodes."""
        good: npt.NDArray[np.bool_] = np.logical_not(((rows ^ self.expected) & self.mask).any(axis=1))
        for value in self.values:
            if value.kind == "constant":
                good &= np.isin(rows[:, value.offset], (_NONE, _TRUE, _FALSE))
        return good


class _Parser:
    def __init__(self, row: bytes) -> None:
        self.row, self.at = row, 0
        self.mask = np.full(len(row), 0xFF, dtype=np.uint8)

    def expect(self, opcodes: bytes) -> None:
        if not self.row.startswith(opcodes, self.at):
            raise Irregular
        self.at += len(opcodes)

    def operand(self, width: int) -> tuple[int, int]:
        place = self.at, width
        self.mask[self.at : self.at + width] = 0
        self.at += width
        if self.at > len(self.row):
            raise Irregular
        return place

    def get(self) -> tuple[int, int]:
        opcode = self.row[self.at : self.at + 1]
        if opcode not in (b"h", b"j"):
            raise Irregular
        self.at += 1
        return self.operand(1 if opcode == b"h" else 4)

    def new_string(self) -> tuple[int, int]:
        """A string and its number in the memo, which is what counts: it can be got under it from here on."""
        size = int.from_bytes(self.row[self.at + 1 : self.at + 5], "little")
        self.at += 5
        self.operand(size)
        opcode = self.row[self.at : self.at + 1]
        if opcode not in (b"q", b"r"):
            raise Irregular
        self.at += 1
        return self.operand(1 if opcode == b"q" else 4)

    def integer(self) -> tuple[int, int] | None:
        for opcode, width in _WIDTHS.items():
            if self.row.startswith(opcode, self.at):
                self.at += len(opcode)
                return self.operand(width)
        return None

    def value(self) -> Value:
        start = self.at
        opcode = self.row[start : start + 1]
        if opcode and opcode[0] in (_NONE, _TRUE, _FALSE):
            return Value("constant", *self.operand(1))
        if (number := self.integer()) is not None:
            return Value("int", *number)
        if opcode == b"]":
            self.expect(b"](")
            while not self.row.startswith(b"e", self.at):
                self._member()
            self.at += 1
            return Value("list", start, self.at - start)
        if opcode == b"X":
            return Value("get", *self.new_string())
        first = self.get()
        if self.at < len(self.row) and self.row[self.at : self.at + 1] in (b"h", b"j"):
            mark = self.at
            second = self.get()
            if self.row.startswith(b"\x86", self.at):
                self.at += 1
                return Value("pair", *first, second)
            self.at = mark
            self.mask[second[0] : second[0] + second[1]] = 0xFF
        return Value("get", *first)

    def _member(self) -> None:
        if self.row.startswith(b"](", self.at):
            self.at += 2
            while not self.row.startswith(b"e", self.at):
                if self.integer() is None:
                    raise Irregular
            self.at += 1
        else:
            self.get()


def number_at(row: bytes, place: tuple[int, int]) -> int:
    """An operand of one row."""
    return int.from_bytes(row[place[0] : place[0] + place[1]], "little", signed=place[1] > 2)


def skeleton_of(row: bytes) -> Skeleton:
    """The skeleton of an entry `}( key value ... u`.

    Raises:
        Irregular: it introduces strings, or is written in another way.
    """
    parser = _Parser(row)
    parser.expect(b"}(")
    keys, values = [], []
    while not row.startswith(b"u", parser.at):
        keys.append(parser.get())
        values.append(parser.value())
    if parser.at != len(row) - 1:
        raise Irregular
    mask = parser.mask
    names = tuple(number_at(row, key) for key in keys)
    expected = np.frombuffer(row, dtype=np.uint8) & mask
    return Skeleton(len(row), tuple(keys), names, tuple(values), mask, expected)


def integers(rows: Bytes, place: tuple[int, int]) -> Ints:
    """`[N]`: an operand of every row."""
    offset, width = place
    part = np.ascontiguousarray(rows[:, offset : offset + width])
    return part.view(_TYPES[width])[:, 0].astype(np.int64)


def numbers(rows: Bytes, value: Value) -> Ints:
    """`[N]`: an integer, the index of a get, or a constant (1, 0 or UNKNOWN) of every row."""
    read = integers(rows, (value.offset, value.width))
    if value.kind == "constant":
        return np.select([read == _TRUE, read == _FALSE], [1, 0], UNKNOWN)
    return read
