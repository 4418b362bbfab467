"""Flight-recorder dumps as columns: what an engine runs on a part of the files, of which it reads the bytes that are needed.

Dumps that torch's C++ pickler has written are decoded many at a time, column by column, without an object per call.
All others go through Python objects, with the same result.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from unhang.errors import UnreadableInput
from unhang.model import CollectiveTable, Unavailable, join
from unhang.model.calls import CALL_COLUMNS, PROGRESS_COLUMNS
from unhang.numeric import PAD, Bytes, Ints, np, places
from unhang.read import restricted_pickle
from unhang.read.dumps import DumpFile, Shard
from unhang.read.dumps.archive import compression
from unhang.read.dumps.batch import BatchReading, Part, table_columns
from unhang.read.dumps.columns import Batch
from unhang.read.dumps.definitions import TextFinder, Texts
from unhang.read.dumps.head import ENTRIES, Head, first_record, head_of, is_end
from unhang.read.dumps.layouts import DICT, MARK, SETITEMS, Irregular, entry_end
from unhang.read.dumps.locate import read_dump
from unhang.read.dumps.objects import Decoded, decode_objects, lengths
from unhang.read.dumps.rows import Names
from unhang.read.files import unreadable

HEAD_BYTES = 32 << 10
DEFINING_BYTES, MOST_DEFINING_BYTES = 24 << 10, 96 << 10
ENTRY_BYTES = 384
LONGEST_END = 9
_END = re.compile(rb"ueu(?:q.|r....)?\.\Z", re.DOTALL)  # the last entry, the list, the dump, and perhaps its number


@dataclass(slots=True)
class Loaded:
    """A whole dump in memory."""

    file: DumpFile
    data: bytes
    head: Head


def loaded(file: DumpFile, data: bytes) -> Loaded:
    """The dump with its head read.

    Raises:
        Irregular: it has no entries, or is not written like torch's pickler does.
    """
    try:
        head = head_of(data)
    except IndexError as error:
        raise Irregular("it is cut short") from error
    return Loaded(file, data, head)


class _Window(NamedTuple):
    """Head and tail of a dump. `first`: the first entry's record; `end`: where the last entry ends in the tail."""

    file: DumpFile
    data: bytes
    tail: bytes
    head: Head
    first: int
    end: int


class WindowReader:
    """Reads heads and tails of local files; learns from one to the next how long heads are."""

    def __init__(self, texts: Texts) -> None:
        self._head_bytes, self._defining_bytes = HEAD_BYTES, DEFINING_BYTES
        self._finder = TextFinder(texts)

    def read(self, files: Sequence[DumpFile], entries: int) -> tuple[Batch | None, list[DumpFile], list[DumpFile]]:
        """The last entries of each dump, the files of the batch, and those that must be read whole."""
        windows: list[_Window] = []
        left: list[DumpFile] = []
        for file in files:
            window = self._window(file, entries * ENTRY_BYTES)
            if window is None:
                left.append(file)
            else:
                windows.append(window)
        if not windows:
            return None, [], left
        return self._batch(windows, entries), [window.file for window in windows], left

    def learn(self, failed: int, files: int) -> bool:
        """Reads longer heads from now on if too many dumps used texts that were not found."""
        if 2 * failed <= files or self._defining_bytes >= MOST_DEFINING_BYTES:
            return False
        self._defining_bytes *= 2
        return True

    def _window(self, file: DumpFile, tail_bytes: int) -> _Window | None:
        """Head and tail of a file; None where it is small, or not written like torch's pickler does."""
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
            return self._read(number, file, status.st_size - tail_bytes, tail_bytes)
        except (OSError, Irregular, IndexError):
            return None
        finally:
            os.close(number)

    def _read(self, number: int, file: DumpFile, rest: int, tail_bytes: int) -> _Window | None:
        data = b""
        while rest > 0:
            wanted = min(self._head_bytes, rest)
            data += os.pread(number, wanted - len(data), len(data))
            if compression(data[:8]) or len(data) < wanted:
                return None
            begin = data.find(ENTRIES)
            if begin >= 0 and (begin + self._defining_bytes <= len(data) or wanted == rest):
                head = head_of(data, with_texts=False)
                tail = os.pread(number, tail_bytes, rest)
                end = _END.search(tail, len(tail) - LONGEST_END)
                if end is None or len(tail) < tail_bytes:
                    return None
                return _Window(file, data, tail, head, first_record(data, head), end.start() + 1)
            if wanted == rest:
                break
            self._head_bytes = begin + self._defining_bytes if begin >= 0 else 4 * self._head_bytes
        return None

    def _batch(self, windows: Sequence[_Window], entries: int) -> Batch:
        dumps = len(windows)
        parts = [*(w.data for w in windows), *(w.tail for w in windows)]
        ends = np.cumsum([len(part) for part in parts])
        buffer = np.frombuffer(b"".join((*parts, bytes(PAD))), np.uint8)
        memos = self._finder.find(buffer, ends, dumps)
        tail_F = ends[dumps - 1 : -1]
        end_F = tail_F + np.array([w.end for w in windows])
        at = _starts(buffer, tail_F, end_F, [w.head.get for w in windows])
        owner = np.searchsorted(tail_F, at, side="right") - 1
        count_F = np.bincount(owner, minlength=dumps)
        next_at = np.append(at, 0)[1:]
        is_last = np.append(np.diff(owner) != 0, True)[: len(at)]
        next_at[is_last] = end_F[owner[is_last]]
        kept = np.cumsum(count_F)[owner] - np.arange(len(at)) <= entries
        at, owner, length = at[kept], owner[kept], (next_at - at)[kept]
        batch = Batch(buffer, [w.head for w in windows], at, length, owner, self._finder.texts)
        batch.memos, batch.first_F = memos, np.array([w.first for w in windows])
        batch.irregular_F |= memos.conflict_F | (count_F < entries)
        return batch


def _starts(buffer: Bytes, tail_F: Ints, end_F: Ints, gets: Sequence[bytes]) -> Ints:
    """Where entries begin in the tails, as far as bytes show."""
    begin = int(tail_F[0])
    at = begin + places(buffer[begin : int(end_F[-1])] == SETITEMS) + 1
    owner = np.searchsorted(tail_F, at, side="right") - 1
    get_F = np.array([list(get.ljust(5, b"\0")) for get in gets], np.uint8)
    size_F = np.array([len(get) for get in gets])
    good = (buffer[at] == DICT) & (buffer[at + 1] == MARK) & (at < end_F[owner])
    at, owner = at[good], owner[good]
    good = np.ones(len(at), bool)
    for k in range(5):
        good &= (buffer[at + 2 + k] == get_F[owner, k]) | (k >= size_F[owner])
    found: Ints = at[good]
    return found


def gathered(dumps: Sequence[Loaded], texts: Texts) -> Batch:
    """The entries of several whole dumps. Those whose end is not found are irregular."""
    bases = np.cumsum([0, *(len(d.data) for d in dumps)]).tolist()
    starts, lengths = [], []
    irregular = np.zeros(len(dumps), bool)
    cuts = np.zeros(0, np.int64)
    for i, dump in enumerate(dumps):
        try:
            cuts = _cuts(dump.data, dump.head, cuts)
            begin, end = _extents(cuts, dump)
        except (Irregular, IndexError):
            irregular[i] = True
            begin = end = np.array([dump.head.start])
        starts.append(begin + bases[i])
        lengths.append(end - begin)
    owner = np.repeat(np.arange(len(dumps)), [len(part) for part in starts])
    buffer = np.frombuffer(b"".join((*(d.data for d in dumps), bytes(PAD))), np.uint8)
    start, length = map(np.concatenate, (starts, lengths))
    batch = Batch(buffer, [d.head for d in dumps], start, length, owner, texts)
    batch.irregular_F |= irregular
    return batch


def _cuts(data: bytes, head: Head, others: Ints) -> Ints:
    """Where entries begin behind the first one, as far as bytes show. `others`: where those of a dump much like it do.

    Behind its first entries, which define texts, a dump mostly has entries as long as those of the dump before it.
    """
    sign = bytes((SETITEMS, DICT, MARK, *head.get))
    array = np.frombuffer(data, np.uint8)
    found = others[:0]
    if len(others):
        found = others + (data.rfind(sign) + 1 - others[-1])
        found = found[np.searchsorted(found, head.start, side="right") :]
        is_cut = np.ones(len(found), bool)
        for k, byte in enumerate(sign):
            is_cut &= array[found + (k - 1)] == byte
        found = found[len(found) - int(np.argmin(np.append(is_cut[::-1], False))) :]  # behind the last that is none
    end = int(found[0]) - 1 if len(found) else len(data) - PAD
    at = places(array[:end] == SETITEMS) + 1
    for k, byte in enumerate(sign[1:]):
        at = at[array[at + k] == byte]
    return np.concatenate((at[at > head.start], found))


def _extents(cuts: Ints, dump: Loaded) -> tuple[Ints, Ints]:
    """Where entries begin and end."""
    begin = np.append(dump.head.start, cuts)
    last = entry_end(dump.data, int(begin[-1]))
    if not is_end(dump.data, last):
        raise Irregular("something follows the entries")
    return begin, np.append(cuts, last)


Read = Callable[[DumpFile], bytes]
BATCH_BYTES, BATCH_FILES, WINDOWS_AT_ONCE = 8 << 20, 64, 128


def decode_shard(
    files: Sequence[DumpFile], *, last: int | None = None, frames: bool = True, read: Read = read_dump
) -> Shard:
    """The calls of some dumps.

    Args:
        files: the dumps, one per rank.
        last: keep only so many calls of each dump; more where a group's open call has no completed one among them.
        frames: resolve the stacks of the calls.
        read: yields the content of a file. Local files are read directly unless another one is given.
    """
    return _Shards(frames, read).decode(files, last)


@dataclass
class _Shards:
    """Decodes files batch by batch. Numbers of names run through all batches."""

    frames: bool
    read: Read
    names: Names = field(default_factory=Names)
    windows: WindowReader = field(init=False)
    parts: list[Part] = field(default_factory=list)
    slow: list[Decoded] = field(default_factory=list)
    absent: list[Unavailable] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows = WindowReader(self.names.texts)

    def decode(self, files: Sequence[DumpFile], last: int | None) -> Shard:
        """The calls of these files."""
        left = list(files)
        if self.read is read_dump and not self.frames:
            for count in (c for c in lengths(last) if c is not None):
                starts = range(0, len(left), WINDOWS_AT_ONCE)
                left = [f for at in starts for f in self._windows(left[at : at + WINDOWS_AT_ONCE], count)]
        self._whole(left, last)
        return self._shard()

    def _windows(self, files: Sequence[DumpFile], count: int) -> Sequence[DumpFile]:
        """Reads heads and tails; returns the files of which more is needed."""
        batch, found, left = self.windows.read(files, count)
        if batch is None:
            return left
        more = self._tails(batch, found, count)
        if self.windows.learn(int(batch.irregular_F.sum()), len(found)):
            return [*left, *self._windows(more, count)]
        return [*left, *more]

    def _tails(self, batch: Batch, files: Sequence[DumpFile], count: int) -> list[DumpFile]:
        """Takes the last calls of dumps; returns the files of those that need another way."""
        try:
            return self._take(batch, files, (count,), is_whole=False)
        except MemoryError:
            return list(files)

    def _whole(self, files: Sequence[DumpFile], last: int | None) -> None:
        """Reads whole files, some at a time."""
        dumps: list[Loaded] = []
        size = 0
        for file in files:
            try:
                data = self.read(file)
            except UnreadableInput as error:
                self._lost(file, str(error))
                continue
            try:
                dumps.append(loaded(file, data))
            except Irregular:
                self._slowly(file, data, last)
                continue
            size += len(data)
            if size >= BATCH_BYTES or len(dumps) >= BATCH_FILES:
                self._flush(dumps, last)
                dumps, size = [], 0
        self._flush(dumps, last)

    def _flush(self, dumps: Sequence[Loaded], last: int | None) -> None:
        if not dumps:
            return
        files = [dump.file for dump in dumps]
        try:
            left = self._take(gathered(dumps, self.names.texts), files, lengths(last), is_whole=True)
        except MemoryError:
            left = files
        ranks = {file.rank for file in left}
        for dump in dumps:
            if dump.file.rank in ranks:
                self._slowly(dump.file, dump.data, last)

    def _take(
        self, batch: Batch, files: Sequence[DumpFile], counts: Sequence[int | None], *, is_whole: bool
    ) -> list[DumpFile]:
        """Takes the calls of a batch; returns the files of those that need another way."""
        columns = table_columns(batch, self.names, frames=self.frames and is_whole, is_whole=is_whole)
        reading = BatchReading(batch, files, self.names, counts, is_whole)
        self.parts.append(reading.read(columns))
        left = batch.irregular_F | reading.short_F
        return [files[i] for i in np.flatnonzero(left).tolist()]

    def _slowly(self, file: DumpFile, data: bytes, last: int | None) -> None:
        try:
            self.slow.append(decode_objects(file, data, last, self.frames))
        except UnreadableInput as error:
            self._lost(file, str(error))
        except MemoryError as error:
            self._lost(file, str(unreadable(str(file), restricted_pickle.describe(error))))

    def _lost(self, file: DumpFile, reason: str) -> None:
        self.absent.append(Unavailable(f"dump of rank {file.rank}", reason))

    def _shard(self) -> Shard:
        tables = [self._table()] if any(part.dumps for part in self.parts) else []
        tables += [decoded.table for decoded in self.slow]
        shown = [dump for part in self.parts for dump in part.dumps] + [decoded.dump for decoded in self.slow]
        return Shard(
            table=join(tables) if tables else CollectiveTable.empty(),
            dumps={dump.file.rank: dump for dump in sorted(shown, key=lambda dump: dump.file.rank)},
            absent=(*self.absent, *(a for decoded in self.slow for a in decoded.absent)),
        )

    def _table(self) -> CollectiveTable:
        """The calls of all parts, by rank and order of issue."""
        columns = {name: np.concatenate([part.columns[name] for part in self.parts]) for name in CALL_COLUMNS}
        if (np.diff(columns["rank"]) < 0).any():
            order = np.lexsort((columns["record_id"], columns["rank"]))
            columns = {name: column[order] for name, column in columns.items()}
        progress = [row for part in self.parts for row in part.progress]
        names = self.names
        return CollectiveTable(
            columns=columns,
            groups=tuple(names.groups),
            ops=tuple(names.ops),
            sizes=tuple(names.sizes),
            dtypes=tuple(names.dtypes),
            stacks=names.call_stacks(),
            threads=tuple(names.threads),
            wrapped_ranks=frozenset().union(*(part.wrapped for part in self.parts)),
            active_ranks=frozenset().union(*(part.active for part in self.parts)),
            progress={
                name: np.array([row[i] for row in progress], dtype=kind)
                for i, (name, kind) in enumerate(PROGRESS_COLUMNS.items())
            },
        )
