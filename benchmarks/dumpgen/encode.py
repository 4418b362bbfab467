"""The bytes of dumps, laid out as torch's pickler lays them out; and JSON.

`to_pickle` writes any dump, entry by entry. `Templates` writes the same bytes faster: ranks with equal programs that got
equally far differ in their header and their times only, so the entries are written once and the times are put in.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dumpgen.rows import STATES, Row
from dumpgen.schedule import CodeFrame

MARK_DICT, MARK_LIST, END_DICT, END_LIST = b"}(", b"](", b"u", b"e"
_INT64 = struct.Struct("<q")
TIME_COLUMNS = 3
PAYS_FROM = 3  # entries of one row, from which on its segments pay


class FrameDict(dict[str, Any]):
    """A frame: torch writes it once and refers to it afterwards, if several calls share it."""

    def __init__(self, frame: CodeFrame) -> None:
        super().__init__(zip(("name", "filename", "line"), frame, strict=True))
        self.code = frame


class Pickler:
    """The parts of torch's C++ pickler that dumps need: strings, and frames among `shared`, are written once."""

    def __init__(self, shared: Container[CodeFrame] = ()) -> None:
        self.shared = shared
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[object, bytes] = {}

    def string(self, text: str) -> None:
        """A string, or a reference to it."""
        known = self.memo.get(text)
        if known is not None:
            self.out += known
            return
        encoded = text.encode()
        self.out += b"X" + struct.pack("<I", len(encoded)) + encoded
        self._remember(text)

    def _remember(self, key: object) -> None:
        n = len(self.memo)
        self.out += b"q" + bytes((n,)) if n < 256 else b"r" + struct.pack("<I", n)
        self.memo[key] = b"h" + bytes((n,)) if n < 256 else b"j" + struct.pack("<I", n)

    def value(self, value: object) -> None:
        """Anything that a dump holds."""
        match value:
            case str():
                self.string(value)
            case None | bool() | int():
                self.out += number(value)
            case FrameDict():
                self.frame(value.code)
            case dict():
                self._dict(value)
            case tuple():
                for item in value:
                    self.value(item)
                self.out += b"\x86"
            case list():
                self.out += MARK_LIST
                for item in value:
                    self.value(item)
                self.out += END_LIST
            case _:
                raise TypeError(type(value))

    def end(self) -> None:
        """The end of the dump. torch remembers the whole, though nothing refers to it."""
        self._remember(None)
        self.out += b"."

    def frame(self, code: CodeFrame) -> None:
        """A frame, or a reference to it."""
        known = self.memo.get(code)
        if known is not None:
            self.out += known
            return
        self.out += MARK_DICT
        for key, item in zip(("name", "filename", "line"), code, strict=True):
            self.string(key)
            self.value(item)
        self.out += END_DICT
        if code in self.shared:
            self._remember(code)

    def _dict(self, values: Mapping[str, Any]) -> None:
        self.out += MARK_DICT
        for name, item in values.items():
            self.string(name)
            self.value(item)
        self.out += END_DICT


def number(value: int | None) -> bytes:
    """None, a truth value, or an integer in the shortest form that torch has."""
    if value is None:
        return b"N"
    if value is True:
        return b"\x88"
    if value is False:
        return b"\x89"
    if 0 <= value < 256:
        return b"K" + bytes((value,))
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + _INT64.pack(value)


def to_pickle(dump: Mapping[str, Any]) -> bytes:
    """A dump as torch pickles it."""
    uses = Counter(frame.code for entry in dump["entries"] for frame in entry.get("frames", ()))
    pickler = Pickler({code for code, count in uses.items() if count > 1})
    pickler.value(dict(dump))
    pickler.end()
    return bytes(pickler.out)


def to_json(dump: Mapping[str, Any]) -> bytes:
    """A dump as `_dump_fr_trace_json` gives it: without frames, with 0 for unknown times, and numbers of status as text."""
    plain = [{k: 0 if v is None else v for k, v in e.items() if k != "frames"} for e in dump["entries"]]
    status = {g: {k: str(v) for k, v in of_group.items()} for g, of_group in dump.get("pg_status", {}).items()}
    whole = {**dump, "entries": plain, **({"pg_status": status, "nccl_comm_state": {}} if status else {})}
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


class Slot(IntEnum):
    """What differs between the entries of one row, in torch's order; from GROUP on, between ranks."""

    RECORD_ID = 0
    COLLECTIVE_SEQ = 1
    P2P_SEQ = 2
    OP_ID = 3
    CREATED = 4
    STATE = 5
    STARTED = 6
    COMPLETED = 7
    RETIRED = 8
    GROUP = 9
    DESC = 10
    PROFILE = 11


_TIMES = {Slot.CREATED: 0, Slot.STARTED: 1, Slot.COMPLETED: 2}
Token = bytes | str | tuple[CodeFrame, ...] | Slot


class Numbers(NamedTuple):
    """The numbers of one entry."""

    record_id: int
    collective_seq: int
    p2p_seq: int
    op_id: int
    state: int
    retired: bool


class Names(NamedTuple):
    """The names in one entry that depend on the rank."""

    group: str
    desc: str
    profile: str


def tokens_of(fields: Mapping[str, Any]) -> list[Token]:
    """An entry, flattened: bytes, strings that are written once, stacks, and slots."""
    tokens: list[Token] = [b"}("]

    def add(token: Token) -> None:
        last = tokens[-1]
        if isinstance(token, bytes) and isinstance(last, bytes):
            tokens[-1] = last + token
        else:
            tokens.append(token)

    def flatten(value: object) -> None:
        match value:
            case Slot() | str():
                add(value)
            case list() if value and isinstance(value[0], FrameDict):
                add(tuple(f.code for f in value))
            case list():
                add(MARK_LIST)
                for item in value:
                    flatten(item)
                add(END_LIST)
            case tuple():
                for item in value:
                    flatten(item)
                add(b"\x86")
            case _:
                assert value is None or isinstance(value, int)
                add(number(value))

    for name, value in fields.items():
        add(name)
        flatten(value)
    add(END_DICT)
    return tokens


class Segments(NamedTuple):
    """The bytes between the numbers of an entry all of whose strings were written before."""

    to_record_id: bytes
    to_collective_seq: bytes
    to_p2p_seq: bytes
    to_op_id: bytes
    to_created: bytes
    to_state: bytes
    to_started: bytes
    to_completed: bytes
    to_retired: bytes
    to_end: bytes


@dataclass(frozen=True)
class Template:
    """The entries of one rank as bytes, and where its times lie: offsets `[T]`, and which of the times `[N, 3]` each is."""

    data: npt.NDArray[np.uint8]
    offset_T: npt.NDArray[np.int64]
    which_T: npt.NDArray[np.int64]

    def with_times(self, time_NC: npt.NDArray[np.int64]) -> bytes:
        """The bytes with other times, shape [N, 3]."""
        data = self.data.copy()
        places = self.offset_T[:, None] + np.arange(8)
        data[places] = time_NC.ravel()[self.which_T].astype("<i8").view(np.uint8).reshape(-1, 8)
        return data.tobytes()


class EntryWriter:
    """Writes the entries of one rank behind a header."""

    def __init__(
        self, pickler: Pickler, tokens: Callable[[Row], Sequence[Token]], names: Callable[[Row], Names]
    ) -> None:
        self._pickler, self._tokens, self._names = pickler, tokens, names
        self._segments: dict[Row, Segments] = {}
        self._stacks: dict[tuple[CodeFrame, ...], bytes] = {}
        self._offsets: list[int] = []
        self._which: list[int] = []

    def write(self, rows: list[tuple[Row, Numbers]], time_NC: npt.NDArray[np.int64]) -> Template:
        """All entries, and the end of the dump."""
        pickler = self._pickler
        begin = len(pickler.out)
        pickler.out += MARK_LIST
        met: dict[Row, int] = {}
        for n, ((row, numbers), times) in enumerate(zip(rows, time_NC.tolist(), strict=True)):
            met[row] = count = met.get(row, 0) + 1
            if count < PAYS_FROM:
                self._write(n, row, numbers, times)
                continue
            if count == PAYS_FROM:
                self._segments[row] = self._segments_of(row)
            self._write_again(n, self._segments[row], numbers, times)
        pickler.out += END_LIST + END_DICT
        pickler.end()
        data = np.frombuffer(bytes(pickler.out[begin:]), dtype=np.uint8)
        return Template(data, np.array(self._offsets, dtype=np.int64) - begin, np.array(self._which, dtype=np.int64))

    def _time(self, n: int, column: int, ns: int) -> None:
        out = self._pickler.out
        if not ns:
            out += b"N"
            return
        self._offsets.append(len(out) + 2)
        self._which.append(n * TIME_COLUMNS + column)
        out += b"\x8a\x08" + _INT64.pack(ns)

    def _write_again(self, n: int, s: Segments, numbers: Numbers, times: list[int]) -> None:
        out = self._pickler.out
        out += s.to_record_id + number(numbers.record_id) + s.to_collective_seq + number(numbers.collective_seq)
        out += s.to_p2p_seq + number(numbers.p2p_seq) + s.to_op_id + number(numbers.op_id) + s.to_created
        self._time(n, 0, times[0])
        out += s.to_state
        self._pickler.string(STATES[numbers.state])
        out += s.to_started
        self._time(n, 1, times[1])
        out += s.to_completed
        self._time(n, 2, times[2])
        out += s.to_retired + number(numbers.retired) + s.to_end

    def _write(self, n: int, row: Row, numbers: Numbers, times: list[int]) -> None:
        """An entry token by token: its strings may be new."""
        pickler, out, names = self._pickler, self._pickler.out, self._names(row)
        known = pickler.memo.get
        for token in self._tokens(row):
            if isinstance(token, bytes):
                out += token
            elif isinstance(token, str):
                reference = known(token)
                if reference is None:
                    pickler.string(token)
                else:
                    out += reference
            elif isinstance(token, tuple):
                self._stack(token)
            elif token in _TIMES:
                self._time(n, _TIMES[token], times[_TIMES[token]])
            elif token is Slot.STATE:
                pickler.string(STATES[numbers.state])
            elif token >= Slot.GROUP:
                pickler.string(names[token - Slot.GROUP])
            else:
                out += number(numbers.retired if token is Slot.RETIRED else numbers[token])

    def _stack(self, frames: tuple[CodeFrame, ...]) -> None:
        """A stack; all of it is one run of bytes once each of its frames was written."""
        pickler = self._pickler
        run = self._stacks.get(frames)
        if run is not None:
            pickler.out += run
            return
        is_known = all(code in pickler.memo for code in frames)
        begin = len(pickler.out)
        pickler.out += MARK_LIST
        for code in frames:
            pickler.frame(code)
        pickler.out += END_LIST
        if is_known:
            self._stacks[frames] = bytes(pickler.out[begin:])

    def _segments_of(self, row: Row) -> Segments:
        """The bytes between the numbers of a row, all of whose strings are known by now."""
        memo, names = self._pickler.memo, self._names(row)
        found, current = [], bytearray()
        for token in self._tokens(row):
            if isinstance(token, bytes):
                current += token
            elif isinstance(token, str):
                current += memo[token]
            elif isinstance(token, tuple):
                current += MARK_LIST + b"".join(memo[code] for code in token) + END_LIST
            elif token >= Slot.GROUP:
                current += memo[names[token - Slot.GROUP]]
            else:
                found.append(bytes(current))
                current = bytearray()
        return Segments._make([*found, bytes(current)])
