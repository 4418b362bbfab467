"""The regular entries of many dumps at once, as columns: those that torch's pickler wrote after all strings were known.

Legend of shapes: F files, N entries of all of them, L bytes of an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from unhang.read.dumps.skeleton import UNKNOWN, Bytes, Ints, Irregular, Skeleton, Value, integers, numbers, skeleton_of

_MOST_SAMPLES = 8
_NUMBERS = (
    "record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "time_created_ns", "time_discovered_started_ns",
    "time_discovered_completed_ns", "retired", "timeout_ms", "is_p2p",
)  # fmt: skip
_STRINGS = ("profiling_name", "state", "thread_name", "thread_id")
_SEGMENTS = ("input_sizes", "output_sizes", "input_dtypes", "frames")
_REQUIRED = frozenset(
    ("process_group", "profiling_name", "state", "record_id", "collective_seq_id", "p2p_seq_id", "is_p2p")
)


@dataclass(frozen=True)
class Part:
    """The entries of one dump within a buffer, and the strings of its memo.

    `starts`: where each entry begins, and as the last one where they end.
    """

    starts: Ints
    strings: Mapping[int, str]


@dataclass
class Entries:
    """Columns `[N]` of regular entries. `file`: index of the part. `ok`: [F], parts of which every entry was regular.

    `numbers`: UNKNOWN where absent. `strings`: index into `texts`. `groups`: index into `pairs`. `segments`: index into
    the distinct byte strings of a list, together with the file where its gets belong to.
    """

    file: Ints
    order: Ints
    numbers: dict[str, Ints]
    strings: dict[str, Ints]
    texts: list[str]
    groups: Ints
    pairs: list[tuple[str, str]]
    segments: dict[str, Ints]
    distinct: list[tuple[int, bytes]]
    ok: npt.NDArray[np.bool_]


@dataclass
class _Read:
    rows: Ints
    skeleton: Skeleton
    fields: Mapping[str, Value]
    bytes: Bytes


@dataclass
class _Numbering:
    """Numbers values by (file, memo index), so that Python looks at each distinct one once."""

    resolve: Callable[[int, int], object]
    values: list[object] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)

    def __call__(self, file_N: Ints, get_N: Ints) -> Ints:
        keys, inverse = np.unique(file_N * (1 << 32) + get_N, return_inverse=True)
        found = np.empty(len(keys), dtype=np.int64)
        for i, key in enumerate(keys.tolist()):
            value = self.resolve(key >> 32, key & 0xFFFFFFFF)
            number = self.known.setdefault(value, len(self.values))
            if number == len(self.values):
                self.values.append(value)
            found[i] = number
        return found[inverse]


def read_entries(buffer: bytes, parts: Sequence[Part], *, frames: bool) -> Entries:
    """Reads the entries of all parts; a part with an entry that is not regular is not `ok` and to be read otherwise."""
    flat = np.frombuffer(buffer, dtype=np.uint8)
    start_N = np.concatenate([p.starts[:-1] for p in parts])
    length_N = np.concatenate([np.diff(p.starts) for p in parts])
    file_N = np.repeat(np.arange(len(parts)), [len(p.starts) - 1 for p in parts])
    entries = _empty(len(start_N), file_N, len(parts))
    by_length = np.argsort(length_N, kind="stable")
    cuts = np.flatnonzero(np.diff(length_N[by_length])) + 1
    reader = _Reader(parts, entries, frames)
    for rows in np.split(by_length, cuts) if len(by_length) else ():
        length = int(length_N[rows[0]])
        windows = np.ndarray((len(flat) - length + 1,), dtype=f"V{length}", buffer=flat, strides=(1,))
        matrix = windows[start_N[rows]].view(np.uint8).reshape(len(rows), length)
        for read in reader.classes(rows, matrix):
            reader.take(read)
    reader.resolve()
    entries.texts, entries.pairs = list(map(str, reader.texts.values)), reader.pairs.values  # type: ignore[assignment]
    return entries


def _empty(count: int, file_N: Ints, parts: int) -> Entries:
    return Entries(
        file=file_N,
        order=np.arange(count),
        numbers={name: np.full(count, UNKNOWN, dtype=np.int64) for name in _NUMBERS},
        strings={name: np.full(count, -1, dtype=np.int64) for name in _STRINGS},
        texts=[],
        groups=np.full(count, -1, dtype=np.int64),
        pairs=[],
        segments={name: np.full(count, -1, dtype=np.int64) for name in _SEGMENTS},
        distinct=[],
        ok=np.ones(parts, dtype=bool),
    )


class _Reader:
    """Takes the rows of one length after the other."""

    def __init__(self, parts: Sequence[Part], entries: Entries, frames: bool) -> None:
        self._parts, self._entries = parts, entries
        self._segments = _SEGMENTS if frames else _SEGMENTS[:-1]
        self._strings = _STRINGS if frames else _STRINGS[:2]
        self._number_F: dict[str, Ints] = {}
        self._key_of = [{name: i for i, name in p.strings.items()} for p in parts]
        self.texts, self.pairs = _Numbering(self._text), _Numbering(self._pair)
        self._gets: dict[tuple[int, int], int] = {}
        self._get_pairs: list[tuple[int, int]] = []
        self._distinct: dict[tuple[int, bytes], int] = {}

    def classes(self, rows: Ints, matrix: Bytes) -> list[_Read]:
        """Splits rows of one length by skeleton; files whose rows have none are marked."""
        found: list[_Read] = []
        left = np.arange(len(rows))
        for _ in range(_MOST_SAMPLES):
            if not len(left):
                return found
            sample = int(left[0])
            file = int(self._entries.file[rows[sample]])
            try:
                skeleton = skeleton_of(matrix[sample].tobytes())
                fields = self._fields(skeleton, file)
            except Irregular:
                self._entries.ok[file] = False
                left = left[self._entries.file[rows[left]] != file]
                continue
            fits = skeleton.fits(matrix[left]) & self._has_keys(skeleton, fields, rows[left], matrix[left])
            found.append(_Read(rows[left[fits]], skeleton, fields, matrix[left[fits]]))
            left = left[~fits]
        self._entries.ok[np.unique(self._entries.file[rows[left]])] = False
        return found

    def _fields(self, skeleton: Skeleton, file: int) -> dict[str, Value]:
        names = [self._parts[file].strings.get(number, "") for number in skeleton.names]
        fields = dict(zip(names, skeleton.values, strict=True))
        expected: dict[str, tuple[str, ...]] = {
            "process_group": ("pair",),
            **dict.fromkeys(_STRINGS, ("get",)),
            **dict.fromkeys(_SEGMENTS, ("list",)),
        }
        expected.update(dict.fromkeys(_NUMBERS, ("int", "constant")))
        if not fields.keys() >= _REQUIRED or len(fields) != len(names):
            raise Irregular
        if any(v.kind not in expected.get(n, (v.kind,)) for n, v in fields.items()):
            raise Irregular
        return fields

    def _has_keys(
        self, skeleton: Skeleton, fields: Mapping[str, Value], rows: Ints, matrix: Bytes
    ) -> npt.NDArray[np.bool_]:
        """Whether the keys of the rows are the same strings: each file numbers them for itself."""
        file_N = self._entries.file[rows]
        good = np.ones(len(rows), dtype=bool)
        for name, place in zip(fields, skeleton.keys, strict=True):
            if name not in self._number_F:
                self._number_F[name] = np.array([keys.get(name, -1) for keys in self._key_of])
            good &= integers(matrix, place) == self._number_F[name][file_N]
        return good

    def take(self, read: _Read) -> None:
        """Copies the operands of rows of one skeleton into the columns."""
        entries, rows = self._entries, read.rows
        if not len(rows):
            return
        file_N = entries.file[rows]
        for name, value in read.fields.items():
            if name in entries.numbers:
                entries.numbers[name][rows] = numbers(read.bytes, value)
            elif name in self._strings:
                entries.strings[name][rows] = numbers(read.bytes, value)
            elif name == "process_group":
                first = integers(read.bytes, (value.offset, value.width))
                second = integers(read.bytes, value.second)
                both, inverse = np.unique((first << 31) | second, return_inverse=True)
                numbered = [self._gets.setdefault((g >> 31, g & 0x7FFFFFFF), len(self._gets)) for g in both.tolist()]
                entries.groups[rows] = np.array(numbered)[inverse]
            elif name in self._segments:
                entries.segments[name][rows] = self._segment(name, file_N, read.bytes, value)

    def resolve(self) -> None:
        """Turns gets into texts, each distinct one once."""
        entries, known = self._entries, np.flatnonzero(self._entries.groups >= 0)
        file_N = entries.file[known]
        for name in self._strings:
            column = entries.strings[name]
            told = known[column[known] >= 0] if name in ("thread_name", "thread_id") else known
            column[told] = self.texts(entries.file[told], column[told])
        entries.groups[known] = self.pairs(file_N, entries.groups[known])

    def _text(self, file: int, get: int) -> str:
        found = self._parts[file].strings.get(get)
        if found is None:
            self._entries.ok[file] = False
        return found or ""

    def _pair(self, file: int, number: int) -> tuple[str, str]:
        if len(self._get_pairs) != len(self._gets):
            self._get_pairs = list(self._gets)
        name, desc = self._get_pairs[number]
        return self._text(file, name), self._text(file, desc)

    def _segment(self, name: str, file_N: Ints, rows: Bytes, value: Value) -> Ints:
        """Numbers equal byte strings equally; those that hold gets only within their file."""
        part = np.ascontiguousarray(rows[:, value.offset : value.offset + value.width])
        owner_N = file_N if name in ("input_dtypes", "frames") else np.full(len(file_N), -1)
        key = _hashed(part) ^ (owner_N.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        found = np.empty(len(first), dtype=np.int64)
        for i, row in enumerate(first.tolist()):
            told = (int(owner_N[row]), part[row].tobytes())
            number = self._distinct.setdefault(told, len(self._distinct))
            if number == len(self._entries.distinct):
                self._entries.distinct.append(told)
            found[i] = number
        return found[inverse]


_RANDOM = np.random.default_rng().integers(1, 1 << 63, size=1 << 12, dtype=np.uint64) | np.uint64(1)


def _hashed(part: Bytes) -> npt.NDArray[np.uint64]:
    """`[N]`: 64 random bits of each byte string; unequal ones collide with a chance of 2^-60."""
    width = -(-part.shape[1] // 8) * 8
    padded = np.zeros((len(part), width), dtype=np.uint8)
    padded[:, : part.shape[1]] = part
    words = padded.view(np.uint64)
    mixed = np.full(len(part), np.uint64(width * 31 + part.shape[1]), dtype=np.uint64)
    for i in range(words.shape[1]):
        mixed = (mixed ^ words[:, i]) * _RANDOM[i % len(_RANDOM)]
        mixed ^= mixed >> np.uint64(29)
    return mixed
