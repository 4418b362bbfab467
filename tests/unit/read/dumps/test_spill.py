"""Calls on disk answer as calls in memory do, and take no more memory when there are more of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_dumps import dump, entry, pickled
from slow_shards import resolved, slow_shard, spoil, write_dumps

from unhang.errors import UnhangError
from unhang.model import CallState, CollectiveTable
from unhang.read.dumps.shard import Shard, merge

pytest.importorskip("duckdb")
from unhang.read.dumps.spill import Spill

RANKS, ENTRIES = 12, 6
OPEN = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}


@pytest.fixture
def shards(tmp_path: Path) -> list[Shard]:
    """Four shards of three ranks; one rank has open calls, one point-to-point calls, one only a damaged dump."""
    files = write_dumps(tmp_path, RANKS, ENTRIES)
    calls = [entry(i, **(OPEN if i > 3 else {})) for i in range(ENTRIES)]
    files[4] = spoil(files[4], pickled(dump(calls, ranks=str(list(range(RANKS))))))
    p2p = [entry(i, "nccl:send 7->2", is_p2p=True, p2p_seq_id=i + 1, collective_seq_id=0) for i in range(ENTRIES)]
    files[7] = spoil(files[7], pickled(dump(p2p, ranks=str(list(range(RANKS))))))
    files[9] = spoil(files[9], b"\x80\x02")
    return [told(slow_shard(files[i : i + 3])) for i in range(0, RANKS, 3)]


def told(shard: Shard) -> Shard:
    """The shard with what its ranks say of their first group."""
    ranks = np.unique(shard.table["rank"])
    kinds = {name: column.dtype for name, column in shard.table.progress.items()}
    progress = {name: np.full(len(ranks), 5, dtype=kind) for name, kind in kinds.items()}
    progress |= {"rank": ranks.astype("i4"), "group": np.zeros(len(ranks), "i4")}
    return replace(shard, table=replace(shard.table, progress=progress, wrapped_ranks=frozenset({int(ranks[0])})))


@pytest.fixture
def spill(tmp_path: Path, shards: list[Shard]) -> Iterator[Spill]:
    """All shards on disk, in a folder whose name is no pattern and no end of a text."""
    folder = tmp_path / "it's [a] *folder?"
    folder.mkdir()
    with Spill(folder) as made:
        for number in (2, 0, 3, 1):
            made.add(shards[number])
        yield made
    assert list(folder.iterdir()) == []


def only(table: CollectiveTable, rows: np.ndarray) -> list[object]:
    return resolved(replace(table, columns={name: column[rows] for name, column in table.columns.items()}))[0]


def test_everything_comes_back_in_the_order_of_ranks(spill: Spill, shards: list[Shard]) -> None:
    whole = merge(shards)
    assert spill.rows == len(whole.table)
    tables = list(spill.tables(most_rows=15))
    assert [len(t) for t in tables] == [12, 12, 12, 12, 12, 6]
    assert resolved(merge([Shard(t) for t in tables]).table) == resolved(whole.table)
    assert [int(t["rank"][0]) for t in tables] == [0, 2, 4, 6, 8, 11]
    assert all(t[name].dtype == column.dtype for t in tables for name, column in whole.table.columns.items())
    assert spill.dumps == dict(whole.dumps)
    assert [a.what for a in spill.absent] == ["dump of rank 9"]


def test_a_rank_larger_than_a_table_stays_whole(spill: Spill) -> None:
    assert [len(t) for t in spill.tables(most_rows=1)] == [ENTRIES] * 11


def test_where_every_rank_stands(spill: Spill) -> None:
    last = spill.last_calls()
    assert last.rank.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 10, 11]
    assert {spill.groups[group].desc for group in last.group.tolist()} == {"default_pg"}
    assert last.issued.tolist() == [ENTRIES] * 10
    assert last.completed.tolist() == [6, 6, 6, 6, 4, 6, 6, 6, 6, 6]


def test_open_calls(spill: Spill, shards: list[Shard]) -> None:
    whole = merge(shards).table
    expected = only(whole, np.flatnonzero(whole["state"] < CallState.COMPLETED))
    assert resolved(spill.open_calls())[0] == expected
    assert len(expected) == 2
    assert resolved(spill.open_calls(most_rows=1))[0] == expected[:1]


def test_one_position_of_a_group(spill: Spill, shards: list[Shard]) -> None:
    whole = merge(shards).table
    rows = np.flatnonzero((whole["seq"] == 3) & ~whole["is_p2p"])
    group = int(spill.last_calls().group[0])
    assert resolved(spill.calls_at(group, 3))[0] == only(whole, rows)
    assert len(rows) == 10
    assert len(spill.calls_at(group, 99)) == 0


def test_calls_of_ranks(spill: Spill, shards: list[Shard]) -> None:
    whole = merge(shards).table
    got = spill.calls_of([7, 0, 99])
    assert resolved(got)[0] == only(whole, np.flatnonzero(np.isin(whole["rank"], [0, 7])))
    assert sorted(got.progress["rank"].tolist()) == [0, 7]
    assert got.wrapped_ranks == {0}
    assert len(spill.calls_of([])) == 0


def test_without_calls_there_are_none(tmp_path: Path) -> None:
    with Spill(tmp_path) as spill:
        spill.add(Shard())
        assert list(spill.tables()) == []
        assert len(spill.open_calls()) == len(spill.calls_of([1])) == len(spill.last_calls().rank) == 0


def test_a_lost_disk_is_one_line(tmp_path: Path, shards: list[Shard]) -> None:
    with Spill(tmp_path) as spill:
        spill.add(shards[0])
        shutil.rmtree(spill._folder)
        with pytest.raises(UnhangError, match="give another folder") as raised:
            spill.open_calls()
        assert "\n" not in str(raised.value)
        with pytest.raises(UnhangError, match="give another folder"):
            spill.add(shards[1])
    with pytest.raises(UnhangError, match="give another folder"):
        Spill(tmp_path / "nowhere")


def test_a_missing_duckdb_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UnhangError, match=r"pip install 'unhang\[analyze\]'"):
        Spill(tmp_path)


MANY = """
import sys, time
from pathlib import Path
import numpy as np
from unhang.model.calls import CALL_COLUMNS, CollectiveTable, ProcessGroup
from unhang.read.dumps.shard import Shard
from unhang.read.dumps.spill import Spill

SHARD_RANKS, EACH = 64, 2000
rows = SHARD_RANKS * EACH

def shard(first):
    rng = np.random.default_rng(first)
    columns = {name: np.zeros(rows, dtype=kind) for name, kind in CALL_COLUMNS.items()}
    columns["rank"][:] = first + np.repeat(np.arange(SHARD_RANKS), EACH)
    columns["record_id"][:] = np.tile(np.arange(EACH), SHARD_RANKS)
    columns["seq"] = columns["record_id"] + 1
    columns["state"][:] = np.where(columns["record_id"] < EACH - 1, 2, 1)
    columns["created_ns"] = 1_795_000_000_000_000_000 + np.cumsum(rng.integers(1000, 2_000_000, rows))
    columns["completed_ns"] = columns["created_ns"] + rng.integers(1000, 2_000_000, rows)
    table = CollectiveTable(
        columns, groups=(ProcessGroup("0", "default_pg", (0,)),), ops=("all_reduce",), sizes=(((1,),),),
        dtypes=("Float",), threads=("main",), stacks=((),),
    )
    return Shard(table)

def peak():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

shard(0)
before = peak()
shards = int(sys.argv[2])
begun = time.perf_counter()
with Spill(Path(sys.argv[1]), memory_bytes=256 << 20) as spill:
    for number in range(shards):
        spill.add(shard(number * SHARD_RANKS))
    written = time.perf_counter()
    assert spill.rows == shards * rows
    assert len(spill.open_calls()) == shards * SHARD_RANKS
    assert len(spill.last_calls().rank) == shards * SHARD_RANKS
    assert len(spill.calls_at(0, EACH)) == shards * SHARD_RANKS
    asked = time.perf_counter()
    seen = last = 0
    for table in spill.tables():
        assert last <= table["rank"][0] and len(table) <= 500_000
        last, seen = table["rank"][-1], seen + len(table)
    assert seen == spill.rows
    told = f"{written - begun:.2f} s to write, {asked - written:.2f} s for three questions"
    print(f"{spill.rows} rows: {told}, {time.perf_counter() - asked:.2f} s to read all", file=sys.stderr)
print(peak() - before)
"""


def grown_mib(folder: Path, shards: int) -> int:
    """By how much the memory of a process grew that kept so many shards of 128,000 calls on disk."""
    done = subprocess.run(
        [sys.executable, "-c", MANY, folder, str(shards)], capture_output=True, text=True, check=True, timeout=55
    )
    print(done.stderr.strip(), done.stdout.strip(), "MiB more")
    return int(done.stdout)


def test_memory_does_not_grow_with_the_calls(tmp_path: Path) -> None:
    """5 M calls would be 435 MB in memory."""
    assert grown_mib(tmp_path, 40) < 400
