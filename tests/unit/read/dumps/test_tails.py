"""The quick way to the last calls gives what the reader of whole dumps gives, or leaves the dump to it."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unhang.model import CollectiveCall, CollectiveTable
from unhang.read.dumps import DumpFile, Shard, decode
from unhang.read.dumps.decode import decode_shard

sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))

import dumpgen

LAST, SHORTEST = 8, 6 << 10


@pytest.fixture(autouse=True)
def short_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads so short that small dumps have a part that is not read."""
    monkeypatch.setattr(decode, "HEAD_BYTES", 4 << 10)
    monkeypatch.setattr(decode, "DEFINING_BYTES", 3 << 10)


def dumps_of(seed: int, folder: Path) -> list[DumpFile]:
    """The pickled dumps of a random job that are long enough to have a tail."""
    dumpgen.random_job(seed).write(folder)
    files = sorted(folder.glob("*_[0-9]*"))
    return [
        DumpFile(i, str(path), size=path.stat().st_size)
        for i, path in enumerate(files)
        if path.stat().st_size > SHORTEST and path.read_bytes()[:1] == b"\x80"
    ]


def calls(table: CollectiveTable, rank: int, last: int) -> list[CollectiveCall]:
    rows = table.rank_rows(rank)
    found = table.calls(range(max(rows.start, rows.stop - last), rows.stop))
    return [replace(call, row=0, frames=None) for call in found]


def told(shard: Shard, rank: int) -> set[tuple[object, ...]]:
    names = ("rank", "group", "enqueued", "started", "completed")
    rows = zip(*(shard.table.progress[name].tolist() for name in names), strict=True)
    return {(r, shard.table.groups[g].name, *rest) for r, g, *rest in rows if r == rank}


def assert_equal(files: list[DumpFile], quick: Shard) -> None:
    whole = decode_shard(files, frames=False)
    for rank in quick.dumps:
        assert calls(quick.table, rank, LAST) == calls(whole.table, rank, LAST)
        assert told(quick, rank) <= told(whole, rank)
        assert quick.dumps[rank].last_ns <= whole.dumps[rank].last_ns
        assert quick.dumps[rank].backend == whole.dumps[rank].backend


def test_the_last_calls_are_those_of_the_whole_dump(tmp_path: Path) -> None:
    quickly = 0
    for seed in range(20):
        (folder := tmp_path / str(seed)).mkdir()
        files = dumps_of(seed, folder)
        whole: list[DumpFile] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode._Shards, "_whole", lambda _, files, last, whole=whole: whole.extend(files))
            quick = decode_shard(files, last=LAST, frames=False)
        assert {f.rank for f in whole} | set(quick.dumps) == {f.rank for f in files}
        assert_equal(files, quick)
        quickly += len(quick.dumps)
    assert quickly > 33, "nearly everything went the slow way"


@pytest.mark.parametrize("seed", range(6))
def test_damage_never_raises_and_costs_no_other_dump(seed: int, tmp_path: Path) -> None:
    files = dumps_of(seed + 1, tmp_path)[:4]
    chance = random.Random(seed)
    damaged = Path(files[0].path)
    intact = damaged.read_bytes()
    for _ in range(30):
        data = bytearray(intact)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        shard = decode_shard(files, last=LAST, frames=False)
        assert {f.rank for f in files[1:]} <= set(shard.dumps)
        assert files[0].rank in shard.dumps or [a.what for a in shard.absent] == [f"dump of rank {files[0].rank}"]


def test_what_is_no_regular_dump_goes_the_slow_way(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(b'{"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []}')
    (tmp_path / "rank_1").write_bytes(b"\x80\x02" + bytes(10_000))
    shard = decode_shard([DumpFile(r, str(tmp_path / f"rank_{r}")) for r in (0, 1, 2)], last=LAST, frames=False)
    assert set(shard.dumps) == {0}
    assert {a.what for a in shard.absent} == {"dump of rank 1", "dump of rank 2"}
