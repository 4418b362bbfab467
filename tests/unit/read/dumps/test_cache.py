"""The cache: the same shard again for the same files, nothing for any others, and no trust in what lies there."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_dumps import dump, entry, pickled
from slow_shards import resolved, slow_shard, spoil, write_dumps

from unhang.model import Unavailable
from unhang.read.dumps import DumpFile, Shard, reader
from unhang.read.dumps.reader import CacheEntry


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[DumpFile]:
    """Four dumps written a minute ago."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "dumps"
    folder.mkdir()
    return [aged(file) for file in write_dumps(folder, 4)]


def aged(file: DumpFile, seconds: float = 60) -> DumpFile:
    """The file as if written some time ago."""
    then = time.time() - seconds
    os.utime(file.path, (then, then))
    return file


def entry_of(files: list[DumpFile], last: int | None = None, frames: bool = True) -> CacheEntry:
    made = CacheEntry.of(files, last=last, frames=frames)
    assert made is not None
    return made


def kept(files: list[DumpFile]) -> list[Path]:
    return sorted(Path(files[0].path).parent.glob(".unhang-cache/*"))


def test_what_is_kept_comes_back(files: list[DumpFile]) -> None:
    shard = slow_shard(files)
    lost = Unavailable("1 of 6 calls of rank 2", "unreadable (it is not a dictionary)")
    progress = {name: np.array([3, 7], dtype=column.dtype) for name, column in shard.table.progress.items()}
    progress["group"] = np.array([0, 0], dtype="i4")
    table = replace(shard.table, wrapped_ranks=frozenset({1, 3}), active_ranks=frozenset({2}), progress=progress)
    shard = replace(shard, table=table, absent=(lost,))
    assert entry_of(files).load() is None
    assert entry_of(files).save(shard)
    got = entry_of(files).load()
    assert got is not None
    assert (got.dumps, got.absent) == (shard.dumps, shard.absent)
    assert resolved(got.table) == resolved(shard.table)
    assert all(got.table[name].dtype == column.dtype for name, column in shard.table.columns.items())
    assert got.table.stacks[0][0].function == "all_reduce"
    assert got.table["seq"].flags.writeable
    assert len(kept(files)) == 1
    assert kept(files)[0].stat().st_mode & 0o077 == 0


def test_an_empty_table_is_kept(files: list[DumpFile]) -> None:
    shard = replace(Shard(), dumps=slow_shard(files).dumps)
    assert entry_of(files).save(shard)
    got = entry_of(files).load()
    assert got is not None
    assert len(got.table) == 0


def test_other_options_files_or_content_are_another_entry(files: list[DumpFile]) -> None:
    assert entry_of(files).save(slow_shard(files))
    assert entry_of(files, last=64).load() is None
    assert entry_of(files, frames=False).load() is None
    assert entry_of(files[:3]).load() is None
    assert entry_of([replace(files[0], rank=9), *files[1:]]).load() is None
    data = Path(files[2].path).read_bytes()
    status = os.stat(files[2].path)
    os.unlink(files[2].path)
    Path(files[2].path).write_bytes(data[:-1] + b"!")
    os.utime(files[2].path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert entry_of(files).load() is None


def test_an_entry_of_other_files_under_the_same_name_is_not_taken(files: list[DumpFile]) -> None:
    assert entry_of(files).save(slow_shard(files))
    others = entry_of([replace(files[0], rank=9), *files[1:]])
    kept(files)[0].rename(kept(files)[0].with_name(others.name))
    assert others.load() is None
    kept(files)[0].rename(kept(files)[0].with_name(entry_of(files).name))
    assert entry_of(files).load() is not None


def test_files_just_written_are_not_kept(files: list[DumpFile]) -> None:
    aged(files[3], 0.5)
    assert not entry_of(files).save(slow_shard(files))
    assert kept(files) == []


def test_a_file_changed_while_it_was_read_is_not_taken_for_the_new_one(files: list[DumpFile]) -> None:
    before = entry_of(files)
    shard = slow_shard(files)
    aged(spoil(files[1], pickled(dump([entry(0)]))))
    assert before.save(shard)
    assert entry_of(files).load() is None


def test_a_shard_that_lacks_a_rank_is_not_kept(files: list[DumpFile]) -> None:
    aged(spoil(files[1], b"\x80\x02}"))
    assert not entry_of(files).save(slow_shard(files))


def test_damage_of_any_kind_counts_as_not_there(files: list[DumpFile]) -> None:
    assert entry_of(files).save(slow_shard(files))
    path = kept(files)[0]
    good = path.read_bytes()
    rng = random.Random(0)
    damaged = [good[:n] for n in (0, 7, 8, 20, 24, len(good) // 2, len(good) - 1)] + [good + b"x"]
    for _ in range(200):
        place = rng.randrange(len(good))
        damaged.append(good[:place] + bytes([good[place] ^ (1 << rng.randrange(8))]) + good[place + 1 :])
    for data in damaged:
        path.write_bytes(data)
        assert entry_of(files).load() is None
    path.write_bytes(good)
    assert entry_of(files).load() is not None


def test_only_the_newest_entries_stay(files: list[DumpFile]) -> None:
    shard = slow_shard(files)
    folder = Path(files[0].path).parent / reader.FOLDER
    folder.mkdir()
    stale = folder / "half.tmp"
    stale.write_bytes(b"x")
    os.utime(stale, (1, 1))
    for last in range(7):
        assert entry_of(files, last=last).save(shard)
        time.sleep(0.02)
    assert len(kept(files)) == 4
    assert entry_of(files, last=6).load() is not None
    assert entry_of(files, last=0).load() is None
    assert not stale.exists()


def test_the_size_of_all_entries_is_bounded(files: list[DumpFile], monkeypatch: pytest.MonkeyPatch) -> None:
    shard = slow_shard(files)
    assert entry_of(files, last=1).save(shard)
    monkeypatch.setattr(reader, "MOST_BYTES", int(kept(files)[0].stat().st_size * 1.5))
    assert entry_of(files, last=2).save(shard)
    assert len(kept(files)) == 1
    monkeypatch.setattr(reader, "MOST_BYTES", 100)
    assert not entry_of(files, last=3).save(shard)
    assert entry_of(files, last=2).load() is None


def test_a_folder_that_is_not_ours_is_left_alone(files: list[DumpFile], tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (Path(files[0].path).parent / reader.FOLDER).symlink_to(elsewhere)
    assert entry_of(files).save(slow_shard(files))
    assert list(elsewhere.iterdir()) == []
    assert len(list((tmp_path / "xdg" / "unhang").iterdir())) == 1
    assert entry_of(files).load() is not None


def test_without_any_place_nothing_is_kept(files: list[DumpFile], monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(files[0].path).parent / reader.FOLDER).write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", files[0].path)
    assert not entry_of(files).save(slow_shard(files))
    assert entry_of(files).load() is None


def test_a_full_disk_leaves_nothing(files: list[DumpFile], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert not entry_of(files).save(slow_shard(files))
    assert kept(files) == []


def test_remote_and_missing_files_have_no_entry(files: list[DumpFile]) -> None:
    assert CacheEntry.of([DumpFile(0, "s3://bucket/rank_0")], last=None, frames=True) is None
    assert CacheEntry.of([*files, DumpFile(9, "/nowhere/rank_9")], last=None, frames=True) is None
    assert CacheEntry.of([], last=None, frames=True) is None
