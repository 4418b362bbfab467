"""Flight-recorder dumps as columns: what an engine runs on a part of the files."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unhang.errors import UnreadableInput
from unhang.model import Unavailable, join
from unhang.read.dumps.decode_slow import Decoded, decode_slowly
from unhang.read.dumps.locate import read_dump
from unhang.read.dumps.shard import DumpFile, Shard

Read = Callable[[DumpFile], bytes]


def decode_shard(
    files: Sequence[DumpFile], *, last: int | None = None, frames: bool = True, read: Read = read_dump
) -> Shard:
    """The calls of some dumps.

    Args:
        files: the dumps, one per rank.
        last: keep only so many calls of each dump; more where a group's open call has no completed one among them.
        frames: resolve the stacks of the calls.
        read: yields the content of a file.
    """
    decoded: list[Decoded] = []
    absent: list[Unavailable] = []
    for file in files:
        try:
            decoded.append(decode_slowly(file, read(file), last, frames))
        except UnreadableInput as error:
            absent.append(Unavailable(f"dump of rank {file.rank}", str(error)))
    return _shard(decoded, absent)


def _shard(decoded: Sequence[Decoded], absent: Sequence[Unavailable]) -> Shard:
    if not decoded:
        return Shard(absent=tuple(absent))
    return Shard(
        table=join([d.table for d in decoded]),
        dumps={d.dump.file.rank: d.dump for d in decoded},
        absent=(*absent, *(a for d in decoded for a in d.absent)),
    )
