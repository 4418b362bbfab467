"""The dumps of a job, read as far as the question needs: first the tail of each, then all of the few that matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from unhang.model import Unavailable
from unhang.read.dumps.cache import CacheEntry
from unhang.read.dumps.engine import MOST_FILES, Engine, LocalEngine, Task, run_all
from unhang.read.dumps.shard import (
    DumpFile,
    RankDump,
    Shard,
    complete_batches,
    merge,
    stale_ranks,
    unify_groups,
    with_world,
)  # fmt: skip

TAIL, TAILS_AT_ONCE = 32, 512
TAILS_OF_ONE, BYTES_OF_ONE = 1024, 24 << 20  # what one process alone reads
WHOLE_BYTES = 24 << 20
_EARLIER_NS = 86_400_000_000_000  # only tails were seen

Progress = Callable[[int, int], None]


class DumpReader:
    """Reads the dumps of one job, one file per rank.

    `given`: what is known of them from elsewhere, and stands for what would be read; None where that is nothing.
    """

    def __init__(
        self,
        files: Sequence[DumpFile],
        engine: Engine | None = None,
        progress: Progress | None = None,
        use_cache: bool = True,
    ) -> None:
        self.files = tuple(files)
        self._engine, self._progress, self._use_cache = engine, progress, use_cache
        self._seen = Shard()
        self.given: Shard | None = None
        self.is_whole = sum(f.size for f in files) <= WHOLE_BYTES

    def look(self) -> Shard:
        """All calls with their stacks where that is little, else the last calls of each rank without stacks."""
        if self.given is not None:
            self._seen = self.given
        elif self.is_whole:
            self._seen = self._read(self.files, None, True)
        else:
            self._seen = self._read(self.files, TAIL, False)
        return self._consistent(self._seen)

    def closer(self, ranks: Collection[int]) -> Shard:
        """What was seen, with all calls of these ranks and their stacks."""
        wanted = [f for f in self.files if f.rank in ranks]
        if wanted and not self.is_whole:
            self._seen = merge([_without(self._seen, {f.rank for f in wanted}), self._read(wanted, None, True)])
        return self._consistent(self._seen)

    def everything(self, frames: bool = False) -> Shard:
        """All calls of all ranks."""
        return self._consistent(self.given or self._read(self.files, None, frames))

    def run(self, task: Task, files: Sequence[DumpFile]) -> Shard:
        """What a task gives on files, run where these dumps are read."""
        return run_all(self._engine_for(files, None), task, files, self._progress)

    @property
    def seen(self) -> Mapping[int, RankDump]:
        """The dumps that could be read."""
        return self._seen.dumps

    @property
    def first_ns(self) -> int:
        """A time before every call."""
        return min((d.first_ns for d in self.seen.values() if d.first_ns), default=0) - _EARLIER_NS

    def in_parts(self, frames: bool) -> Iterator[Shard]:
        """All calls, a bounded number of ranks at a time."""
        from unhang.read.dumps.decode import decode_shard

        task = partial(decode_shard, last=None, frames=frames)
        for shard in self._engine_for(self.files, None).run(task, self.files, self._progress):
            yield self._consistent(shard)

    def _consistent(self, shard: Shard) -> Shard:
        """With one number for each group, and without what is of an earlier run."""
        stale = stale_ranks(shard)
        if stale:
            reason = "its calls end before those of the other ranks begin: it is of an earlier run"
            notes = tuple(Unavailable(f"dump of rank {rank}", reason) for rank in stale)
            shard = replace(_without(shard, stale), absent=(*shard.absent, *notes))
        table = with_world(unify_groups(shard.table), {f.rank for f in self.files})
        return replace(shard, table=complete_batches(table))

    def _read(self, files: Sequence[DumpFile], last: int | None, frames: bool) -> Shard:
        from unhang.read.dumps.decode import decode_shard

        entry = CacheEntry.of(files, last=last, frames=frames) if self._use_cache else None
        kept = entry.load() if entry is not None else None
        if kept is not None:
            return kept
        most_files = MOST_FILES if last is None else TAILS_AT_ONCE
        task = partial(decode_shard, last=last, frames=frames)
        shard = run_all(self._engine_for(files, last), task, files, self._progress, most_files)
        if entry is not None:
            entry.save(shard)
        return shard

    def _engine_for(self, files: Sequence[DumpFile], last: int | None) -> Engine:
        """The engine that was given, or processes of this machine: one alone where a second costs more than it does."""
        if self._engine is not None:
            return self._engine
        is_known = all(f.size for f in files)
        are_few = len(files) <= TAILS_OF_ONE
        is_little = are_few if last is not None else is_known and sum(f.size for f in files) <= BYTES_OF_ONE
        return LocalEngine(1 if is_little else None)


def _without(shard: Shard, ranks: Collection[int]) -> Shard:
    table = shard.table
    kept, kept_progress = (~np.isin(part["rank"], list(ranks)) for part in (table.columns, table.progress))
    return Shard(
        replace(
            table,
            columns={name: column[kept] for name, column in table.columns.items()},
            progress={name: column[kept_progress] for name, column in table.progress.items()},
            wrapped_ranks=table.wrapped_ranks - set(ranks),
            active_ranks=table.active_ranks - set(ranks),
        ),
        {rank: dump for rank, dump in shard.dumps.items() if rank not in ranks},
        shard.absent,
    )
