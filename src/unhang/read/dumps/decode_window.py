"""The bytes of dumps that are needed: all of a file, or its head, which defines what later entries use, and its tail."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unhang.read.dumps.archive import compression
from unhang.read.dumps.columns import PAD, Batch
from unhang.read.dumps.decode_header import ENTRIES, Head, first_get, head_of, is_end
from unhang.read.dumps.layouts import GET, Quirk, entry_end
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
    entries: int = 0


def loaded(file: DumpFile, data: bytes, cut: int = 0) -> Loaded:
    """The dump with its head read.

    Raises:
        Quirk: it has no entries, or is not written like torch's pickler does.
    """
    try:
        head = head_of(data, cut or len(data))
    except IndexError as error:
        raise Quirk("it is cut short") from error
    if not head.first:
        raise Quirk("no entries")
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


def gathered(dumps: Sequence[Loaded], tail: int) -> Batch:
    """The entries of several dumps. Of those that are head and tail, the last `tail` are wanted.

    Dumps whose end or tail is not found are quirky.
    """
    bases = np.cumsum([0, *(len(d.data) for d in dumps)])
    buffer = np.frombuffer(b"".join((*(d.data for d in dumps), bytes(PAD))), np.uint8)
    cuts, of_dump = _beginnings(buffer, bases, [d.head for d in dumps])
    bounds = np.searchsorted(of_dump, np.arange(len(dumps) + 1)).tolist()
    starts, lengths, wanted, owners, quirky = [], [], [], [], []
    for i, dump in enumerate(dumps):
        base = int(bases[i])
        dump.head.at = base + dump.head.start
        found = cuts[bounds[i] : bounds[i + 1]]
        found = found[found >= dump.head.at]
        try:
            begin, end = _extents(found, dump, base, tail)
        except (Quirk, IndexError):
            quirky.append(i)
            begin, end = np.array([dump.head.at]), np.array([dump.head.first_end + base])
        starts.append(begin)
        lengths.append(end - begin)
        wanted.append(begin >= base + dump.cut if dump.cut else np.ones(len(begin), bool))
        owners.append(np.full(len(begin), i))
        dump.entries = len(begin)
    heads = [d.head for d in dumps]
    columns = (np.concatenate(parts) for parts in (starts, lengths, owners, wanted))
    batch = Batch(buffer, heads, *columns)
    batch.quirky_F[quirky] = True
    return batch


def _beginnings(buffer: np.ndarray, bases: np.ndarray, heads: Sequence[Head]) -> tuple[np.ndarray, np.ndarray]:
    """Where the bytes stand that end one entry and begin the next, and in which dump."""
    at = np.flatnonzero(buffer[:-PAD] == ord("u")) + 1
    at = at[(buffer[at] == ord("}")) & (buffer[at + 1] == ord("("))]
    of_dump = np.searchsorted(bases, at, side="right") - 1
    gets = [first_get(head)[2:] for head in heads]
    same = (buffer[at + 2] == np.array([g[0] for g in gets])[of_dump]) & (
        buffer[at + 3] == np.array([g[1] for g in gets])[of_dump]
    )
    for k in range(2, 5):  # the other bytes of long numbers
        expected = np.array([g[k] if g[0] != GET else -1 for g in gets])[of_dump]
        if (expected >= 0).any():
            same &= (expected < 0) | (buffer[at + 2 + k] == expected)
    return at[same], of_dump[same]


def _extents(found: np.ndarray, dump: Loaded, base: int, tail: int) -> tuple[np.ndarray, np.ndarray]:
    """Where entries begin and end in the buffer."""
    if len(found) == 0 or found[0] != dump.head.at:
        found = np.concatenate([[dump.head.at], found])
    if dump.cut:
        behind = np.searchsorted(found, base + dump.cut, side="right")
        if len(found) - behind < tail:
            raise Quirk("the tail is too short")
    last = int(found[-1]) - base
    end = entry_end(dump.data, last)
    if not is_end(dump.data, end):
        raise Quirk("something stands behind the entries")
    ends = np.append(found[1:], base + end)
    if not dump.cut:
        return found, ends
    keep = np.ones(len(found), bool)
    keep[behind - 1 : len(found) - tail] = False
    return found[keep], ends[keep]
