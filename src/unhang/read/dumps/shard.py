"""What a part of the dumps gives, and how parts become the whole: the two halves that every engine runs.

`partial(files) -> Shard` runs anywhere, on any subset of the files; `merge(shards) -> Shard` is associative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unhang.model import CollectiveTable, Unavailable, join


@dataclass(frozen=True, slots=True)
class DumpFile:
    """Where the dump of one rank lies.

    `path`: a local path, or an fsspec URL. `member`: its name within a tar archive. `size`: bytes on disk, 0 if unknown.
    `written_ns`: modification time (wall clock), 0 if unknown.
    """

    rank: int
    path: str
    member: str = ""
    size: int = 0
    written_ns: int = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.member}" if self.member else self.path


@dataclass(frozen=True, slots=True)
class RankDump:
    """What one dump is, apart from its calls. Times are wall-clock nanoseconds, 0 if unknown.

    `entries`: calls in the dump, of which the table may hold only the last. `last_ns`: the latest time it mentions.
    """

    file: DumpFile
    version: str = ""
    backend: str = ""
    entries: int = 0
    has_frames: bool = False
    first_ns: int = 0
    last_ns: int = 0


@dataclass(frozen=True)
class Shard:
    """The calls of some ranks, what their dumps are, and what could not be read.

    `parts`: what a task gives that asks something else of the dumps than their calls.
    """

    table: CollectiveTable = field(default_factory=CollectiveTable.empty)
    dumps: Mapping[int, RankDump] = field(default_factory=dict)
    absent: tuple[Unavailable, ...] = ()
    parts: tuple[Any, ...] = ()


def merge(shards: Sequence[Shard]) -> Shard:
    """Several shards as one. No rank may be in two of them."""
    if not shards:
        return Shard()
    return Shard(
        table=join([s.table for s in shards]),
        dumps={rank: dump for s in shards for rank, dump in s.dumps.items()},
        absent=tuple(a for s in shards for a in s.absent),
        parts=tuple(part for s in shards for part in s.parts),
    )
