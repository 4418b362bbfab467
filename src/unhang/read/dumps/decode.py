"""The calls of some dumps as one Shard: every entry becomes an object first, which is slow and takes any dump."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unhang.errors import UnreadableInput
from unhang.model import TableBuilder, Unavailable
from unhang.read.dumps.locate import read_dump
from unhang.read.dumps.shard import DumpFile, RankDump, Shard
from unhang.read.flight_recorder import RecordedCalls, add_calls, decode, lost_entries


def decode_shard(
    files: Sequence[DumpFile],
    *,
    last: int | None = None,
    frames: bool = True,
    read: Callable[[DumpFile], bytes] = read_dump,
) -> Shard:
    """The calls of these dumps."""
    builder, dumps, absent = TableBuilder(), {}, []
    for file in files:
        try:
            dump = decode(read(file), trusted=True, name=str(file))
            recorded = RecordedCalls(dump, str(file))
        except UnreadableInput as error:
            absent.append(Unavailable(f"dump of rank {file.rank}", str(error)))
            continue
        absent.extend(lost_entries(recorded, file.rank))
        calls = recorded.calls if last is None else recorded.calls[-last:]
        add_calls(calls, file.rank, builder, recorded.groups)
        if recorded.wrapped or len(calls) < len(recorded.calls):
            builder.mark_wrapped(file.rank)
        times = [t for c in calls for t in (c.created_ns, c.started_ns, c.completed_ns) if t]
        dumps[file.rank] = RankDump(
            file, dump["version"], recorded.backend, len(recorded.calls), recorded.has_frames, min(times, default=0), max(times, default=0)
        )
    return Shard(builder.build(), dumps, tuple(absent))
