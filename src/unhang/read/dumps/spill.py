"""Calls that do not fit into memory: they lie on disk as parquet, and bounded questions are asked of them."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from unhang.errors import UnhangError
from unhang.model import CallState, CollectiveTable, ProcessGroup, Unavailable, join
from unhang.model.calls import CALL_COLUMNS
from unhang.read.dumps.shard import RankDump, Shard

MOST_ROWS = 500_000
MOST_THREADS = 4  # each holds a row group of its own while it writes
_NAMES = ", ".join(f'"{name}"' for name in CALL_COLUMNS)


class _Part(NamedTuple):
    """The calls of one shard on disk, and which ranks they are of."""

    path: Path
    first: int
    last: int


class LastCalls(NamedTuple):
    """The last sequence number of every rank in every group, over collectives alone. Arrays of shape [pairs].

    `completed` is -1 where none of the calls kept has completed.
    """

    rank: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32]
    issued: npt.NDArray[np.int64]
    completed: npt.NDArray[np.int64]


class Spill:
    """Shards on disk, with one numbering of groups, names, sizes and stacks for all. Use it with `with`.

    Args:
        folder: where the files may lie; they are removed at the end.
        memory_bytes: what the database may use. A table that is answered comes on top.
    """

    def __init__(self, folder: Path, memory_bytes: int = 256 << 20) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise UnhangError("calls larger than memory need duckdb: pip install 'unhang[analyze]'") from error
        self._error = duckdb.Error
        self._known = CollectiveTable.empty()
        self._parts: list[_Part] = []
        self.dumps: dict[int, RankDump] = {}
        self.absent: list[Unavailable] = []
        self.rows = 0
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="unhang-calls-", dir=folder))
        except OSError as error:
            raise UnhangError(
                f"{folder}: no calls can be kept there ({error.strerror}); give another folder"
            ) from error
        self._database = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{max(1, memory_bytes >> 20)}MiB",
                "temp_directory": str(self._folder / "temporary"),
                "threads": min(len(os.sched_getaffinity(0)), MOST_THREADS),
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._database.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def groups(self) -> tuple[ProcessGroup, ...]:
        """All groups, by the numbers that the answers use."""
        return self._known.groups

    def add(self, shard: Shard) -> None:
        """Writes the calls of a shard. No rank may be in two shards.

        Raises:
            UnhangError: the disk is full, or the memory too small.
        """
        # Joined behind the tables without rows, a shard's numbers become those of all and old numbers stay.
        table = join([self._known, shard.table])
        self._known = replace(table, columns=CollectiveTable.empty().columns)
        self.dumps |= shard.dumps
        self.absent += shard.absent
        if not len(table):
            return
        path = self._folder / f"{len(self._parts)}.parquet"
        quoted = str(path).replace("'", "''")
        self._database.register("part", dict(table.columns))
        try:
            self._execute(f"COPY (SELECT {_NAMES} FROM part) TO '{quoted}' (FORMAT parquet, COMPRESSION zstd)")
        finally:
            self._database.unregister("part")
        self._parts.append(_Part(path, int(table["rank"][0]), int(table["rank"][-1])))
        self.rows += len(table)

    def last_calls(self) -> LastCalls:
        """Where every rank stands in every group."""
        done = f"max(seq) FILTER (WHERE state = {int(CallState.COMPLETED)})"
        query = (
            f'SELECT rank, "group", max(seq) AS issued, coalesce({done}, -1) AS completed FROM calls WHERE NOT is_p2p'
        )
        got = self._ask(f"{query} GROUP BY ALL ORDER BY ALL", self._parts)
        kinds = {"rank": "i4", "group": "i4", "issued": "i8", "completed": "i8"}
        return LastCalls(*(np.asarray(got[name], dtype=kind) for name, kind in kinds.items()))

    def open_calls(self, most_rows: int = MOST_ROWS) -> CollectiveTable:
        """Calls that have not completed; where there are more than `most_rows`, those of the lowest ranks."""
        where = f"state < {int(CallState.COMPLETED)} ORDER BY rank, record_id LIMIT {int(most_rows)}"
        return self._table(where, self._parts)

    def calls_at(self, group: int, seq: int) -> CollectiveTable:
        """What every rank issued as number `seq` of a group, collectives alone."""
        where = f'"group" = {int(group)} AND seq = {int(seq)} AND NOT is_p2p ORDER BY rank, record_id'
        return self._table(where, self._parts)

    def calls_of(self, ranks: Collection[int]) -> CollectiveTable:
        """All calls of these ranks."""
        wanted = sorted({int(rank) for rank in ranks})
        if not wanted:
            return self._with({}, ())
        listed = ", ".join(map(str, wanted))
        parts = [part for part in self._parts if any(part.first <= rank <= part.last for rank in wanted)]
        return self._table(f"rank IN ({listed}) ORDER BY rank, record_id", parts, wanted)

    def tables(self, most_rows: int = MOST_ROWS) -> Iterator[CollectiveTable]:
        """All calls, some whole ranks at a time, by rank. A table is larger than `most_rows` only for a single rank."""
        counted = self._ask("SELECT rank, count(*) AS calls FROM calls GROUP BY rank ORDER BY rank", self._parts)
        ranks: list[int] = []
        rows = 0
        for rank, calls in zip(counted["rank"].tolist(), counted["calls"].tolist(), strict=True):
            if ranks and rows + calls > most_rows:
                yield self._between(ranks)
                ranks, rows = [], 0
            ranks.append(rank)
            rows += calls
        if ranks:
            yield self._between(ranks)

    def _between(self, ranks: Sequence[int]) -> CollectiveTable:
        first, last = ranks[0], ranks[-1]
        parts = [part for part in self._parts if part.first <= last and first <= part.last]
        return self._table(f"rank BETWEEN {first} AND {last} ORDER BY rank, record_id", parts, ranks)

    def _table(self, where: str, parts: Sequence[_Part], ranks: Collection[int] | None = None) -> CollectiveTable:
        return self._with(self._ask(f"SELECT {_NAMES} FROM calls WHERE {where}", parts), ranks)

    def _with(self, columns: dict[str, Any], ranks: Collection[int] | None) -> CollectiveTable:
        """A table around columns; of what the ranks say of themselves, only what `ranks` say."""
        known = self._known
        columns = {name: np.asarray(columns.get(name, ()), dtype=kind) for name, kind in CALL_COLUMNS.items()}
        if ranks is None:
            return replace(known, columns=columns)
        told = np.isin(known.progress["rank"], list(ranks))
        return replace(
            known,
            columns=columns,
            wrapped_ranks=known.wrapped_ranks.intersection(ranks),
            active_ranks=known.active_ranks.intersection(ranks),
            progress={name: column[told] for name, column in known.progress.items()},
        )

    def _ask(self, query: str, parts: Sequence[_Part]) -> dict[str, Any]:
        """The columns of an answer; `calls` in the query are those of the parts."""
        if not parts:
            return {name: np.zeros(0, "i8") for name in ("rank", "group", "issued", "completed", "calls")}
        files = [glob.escape(str(part.path)) for part in parts]
        result = self._execute(f"WITH calls AS (SELECT * FROM read_parquet($files)) {query}", {"files": files})
        return dict(result.fetchnumpy())

    def _execute(self, query: str, values: dict[str, Any] | None = None) -> Any:
        try:
            return self._database.execute(query, values)
        except self._error as error:
            reason = str(error).strip().splitlines()[0][:200]
            raise UnhangError(f"calls kept in {self._folder}: {reason}; free space or give another folder") from error
