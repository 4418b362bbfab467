"""The bytes of dumps that are needed: all of a file, or its head, which defines what later entries use, and its tail."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unhang.read.dumps.archive import compression
from unhang.read.dumps.columns import Batch, Bytes, Ints
from unhang.read.dumps.decode_header import ENTRIES, Head, head_of, is_end
from unhang.read.dumps.definitions import PAD, Texts
from unhang.read.dumps.layouts import DICT, MARK, SETITEMS, Quirk, entry_end
from unhang.read.dumps.shard import DumpFile

HEAD_BYTES = 64 << 10
DEFINING_BYTES = 48 << 10
ENTRY_BYTES = 320


@dataclass(slots=True)
class Loaded:
    """A dump in memory. `cut`: where the tail begins if `data` is only head and tail, else 0."""

    file: DumpFile
    data: bytes
    head: Head
    cut: int = 0


def loaded(file: DumpFile, data: bytes, cut: int = 0) -> Loaded:
    """The dump with its head read.

    Raises:
        Quirk: it has no entries, or is not written like torch's pickler does.
    """
    try:
        head = head_of(data, cut or len(data))
    except IndexError as error:
        raise Quirk("it is cut short") from error
    return Loaded(file, data, head, cut)


class WindowReader:
    """Reads heads and tails of local files; learns from one to the next how long heads are."""

    def __init__(self) -> None:
        self._head_bytes = HEAD_BYTES

    def read(self, file: DumpFile, entries: int) -> tuple[bytes, int] | None:
        """Head and tail, and where the tail begins; None where the file is small, or must be read whole."""
        if file.member or "://" in file.path:
            return None
        try:
            number = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                return None
            return self._read(number, status.st_size, entries * ENTRY_BYTES)
        except OSError:
            return None
        finally:
            os.close(number)

    def _read(self, number: int, size: int, tail_bytes: int) -> tuple[bytes, int] | None:
        limit = size - tail_bytes
        head = b""
        while self._head_bytes * 3 // 2 < limit:
            head += os.pread(number, self._head_bytes - len(head), len(head))
            if compression(head[:8]) or len(head) < self._head_bytes:
                return None
            begin = head.find(ENTRIES)
            if begin >= 0 and begin + DEFINING_BYTES <= len(head):
                return head + os.pread(number, tail_bytes, limit), len(head)
            self._head_bytes = begin + DEFINING_BYTES if begin >= 0 else 2 * self._head_bytes
        return None


def gathered(dumps: Sequence[Loaded], tail: int, texts: Texts) -> Batch:
    """The entries of several dumps. Of those that are head and tail, the last `tail` are wanted.

    Dumps whose end or tail is not found are quirky.
    """
    bases = np.cumsum([0, *(len(d.data) for d in dumps)]).tolist()
    starts, lengths, wanted = [], [], []
    quirky = np.zeros(len(dumps), bool)
    for i, dump in enumerate(dumps):
        dump.head.at = bases[i] + dump.head.start
        try:
            begin, end = _extents(_cuts(np.frombuffer(dump.data, np.uint8), dump.head), dump, tail)
        except (Quirk, IndexError):
            quirky[i] = True
            begin = end = np.array([dump.head.start])
        starts.append(begin + bases[i])
        lengths.append(end - begin)
        wanted.append(begin >= dump.cut)
    owner = np.repeat(np.arange(len(dumps)), [len(part) for part in starts])
    buffer = np.frombuffer(b"".join((*(d.data for d in dumps), bytes(PAD))), np.uint8)
    start, length, is_wanted = map(np.concatenate, (starts, lengths, wanted))
    batch = Batch(buffer, [d.head for d in dumps], start, length, owner, is_wanted, texts)
    batch.quirky_F |= quirky
    return batch


def _cuts(data: Bytes, head: Head) -> Ints:
    """Where entries begin behind the first one, as far as bytes tell."""
    at = _places(data[:-PAD] == SETITEMS) + 1
    for k, byte in enumerate((DICT, MARK, *head.get)):
        at = at[data[at + k] == byte]
    return at[at > head.start]


def _places(is_it: npt.NDArray[np.bool_]) -> Ints:
    """Where an array is true, when that is seldom: whole words are looked at first."""
    size = len(is_it) // 8 * 8
    words = np.flatnonzero(is_it[:size].view(np.uint64) != 0)
    row, column = np.nonzero(is_it[:size].reshape(-1, 8)[words])
    return np.concatenate([words[row] * 8 + column, size + np.flatnonzero(is_it[size:])])


def _extents(cuts: Ints, dump: Loaded, tail: int) -> tuple[Ints, Ints]:
    """Where entries begin and end."""
    begin = np.append(dump.head.start, cuts)
    behind = int(np.searchsorted(begin, dump.cut, side="right"))
    if dump.cut and len(begin) - behind < tail:
        raise Quirk("the tail is too short")
    last = entry_end(dump.data, int(begin[-1]))
    if not is_end(dump.data, last):
        raise Quirk("something stands behind the entries")
    end = np.append(cuts, last)
    if not dump.cut:
        return begin, end
    keep = np.ones(len(begin), bool)
    keep[behind - 1 : len(begin) - tail] = False
    return begin[keep], end[keep]
