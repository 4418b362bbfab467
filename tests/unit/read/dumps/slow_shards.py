"""Folders of dumps, and the slow, plain way to make a shard of them: what the engines are tested with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from made_dumps import dump, entry, pickled

from unhang.errors import UnreadableInput
from unhang.model import CollectiveTable, TableBuilder, Unavailable
from unhang.read.dumps import DumpFile, RankDump, Shard
from unhang.read.dumps.objects import RecordedCalls, add_calls, load, lost_entries

NAMES = ("nccl:all_reduce", "nccl:broadcast", "nccl:all_gather")


def write_dumps(folder: Path, ranks: int, entries: int = 6) -> list[DumpFile]:
    """Dumps of a healthy job, each rank with one call of its own size."""
    files = []
    for rank in range(ranks):
        made = dump(
            [
                entry(i, NAMES[(i + rank) % len(NAMES)], input_sizes=[[i, rank] if i == 1 else [4, 3]])
                for i in range(entries)
            ],
            ranks=str(list(range(ranks))),
        )
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickled(made))
        files.append(DumpFile(rank, str(path), size=path.stat().st_size))
    return files


def spoil(file: DumpFile, data: bytes) -> DumpFile:
    """The file with other content."""
    Path(file.path).write_bytes(data)
    return DumpFile(file.rank, file.path, size=len(data))


def slow_shard(files: Sequence[DumpFile]) -> Shard:
    """Every entry of every file, through Python objects."""
    builder = TableBuilder()
    dumps: dict[int, RankDump] = {}
    absent: list[Unavailable] = []
    for file in files:
        try:
            recorded = RecordedCalls(load(Path(file.path).read_bytes(), trusted=True, name=file.path), file.path)
        except UnreadableInput as error:
            absent.append(Unavailable(f"dump of rank {file.rank}", str(error)))
            continue
        add_calls(recorded.calls, file.rank, builder, recorded.groups)
        absent.extend(lost_entries(recorded, file.rank))
        dumps[file.rank] = RankDump(file, "2.10", recorded.backend, len(recorded.calls), recorded.has_frames)
    return Shard(builder.build(), dumps, tuple(absent))


def resolved(table: CollectiveTable) -> list[object]:
    """What the table says, whatever its numbering is."""
    rows: list[object] = [*table.calls(range(len(table)))]
    rows = [tuple(getattr(call, name) for name in call.__slots__ if name != "row") for call in rows]
    progress = zip(*(table.progress[name].tolist() for name in table.progress), strict=True)
    said = sorted((rank, table.groups[group].name, *numbers) for rank, group, *numbers in progress)
    return [rows, said, sorted(table.wrapped_ranks), sorted(table.active_ranks), set(table.groups)]


def same(a: Shard, b: Shard) -> bool:
    """Whether two shards say the same."""
    return resolved(a.table) == resolved(b.table) and a.dumps == b.dumps and sorted_absent(a) == sorted_absent(b)


def sorted_absent(shard: Shard) -> list[tuple[str, str]]:
    """What is absent, in an order of its own."""
    return sorted((a.what, a.reason) for a in shard.absent)
