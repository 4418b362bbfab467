"""Flight-recorder dumps as columns: what an engine runs on a part of the files.

Dumps that torch's C++ pickler has written are decoded many at a time, column by column, without an object per call.
All others go through Python objects, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from unhang.errors import UnreadableInput
from unhang.model import CollectiveTable, Unavailable, join
from unhang.model.calls import CALL_COLUMNS, PROGRESS_COLUMNS
from unhang.read import restricted_pickle
from unhang.read.dumps.batch import BatchReading, Part, table_columns
from unhang.read.dumps.columns import Batch
from unhang.read.dumps.layouts import Irregular
from unhang.read.dumps.locate import read_dump
from unhang.read.dumps.objects import Decoded, decode_objects, lengths
from unhang.read.dumps.rows import Names
from unhang.read.dumps.shard import DumpFile, Shard
from unhang.read.dumps.windows import Loaded, WindowReader, gathered, loaded
from unhang.read.files import unreadable

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
                left = [f for batch in _batches(left) for f in self._windows(batch, count)]
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


def _batches(files: Sequence[DumpFile]) -> Iterator[Sequence[DumpFile]]:
    for at in range(0, len(files), WINDOWS_AT_ONCE):
        yield files[at : at + WINDOWS_AT_ONCE]
