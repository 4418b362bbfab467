"""Folders and shared memory: mounts, room, what is left there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.check.forked import forked
from unhang.check.calls import TookTooLong
from unhang.check.machine.folders import mount_of, read_folder
from unhang.check.machine.limits import leftovers

MOUNTS = """\
/dev/vda1 / ext4 rw,relatime 0 0
server:/export /data nfs4 rw,hard 0 0
tmpfs /data/my\\040cache tmpfs rw 0 0
tmpfs /dat tmpfs rw 0 0
"""


def test_the_innermost_mount_counts() -> None:
    assert mount_of("/data/run/1", MOUNTS) == ("/data", "nfs4", "server:/export")
    assert mount_of("/data/my cache/x", MOUNTS)[1] == "tmpfs"
    assert mount_of("/home", MOUNTS) == ("/", "ext4", "/dev/vda1")
    assert mount_of("/home", "") == ("", "", "")


def test_a_folder_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    found = read_folder(tmp_path, writes=True)
    assert found["written_bytes"] > 0
    assert found["write_mb_per_s"] > 0
    assert (found["exists"], found["is_writable"], found["write_problem"]) == (True, True, "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    found = read_folder(tmp_path / "runs" / "1", writes=True)
    assert found["exists"] is False
    assert found["free_bytes"] > 0
    assert "written_bytes" not in found
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        read_folder(tmp_path / "file")


def test_a_file_system_that_does_not_answer_costs_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unhang.check.machine.folders.limited", forked)
    monkeypatch.setattr("unhang.check.machine.folders.LIMIT_S", 0.2)
    monkeypatch.setattr("unhang.check.machine.folders.os.statvfs", lambda path: time.sleep(60))
    monkeypatch.setattr("unhang.check.machine.folders._is_busy", lambda: False)
    with pytest.raises(TookTooLong):
        read_folder(tmp_path)
    monkeypatch.setattr("unhang.check.machine.folders._is_busy", lambda: True)
    with pytest.raises(RuntimeError, match="too busy to tell"):
        read_folder(tmp_path)


def test_a_disk_that_takes_nothing_is_slow_and_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unhang.check.machine.folders.limited", forked)
    monkeypatch.setattr("unhang.check.machine.folders._WRITE_LIMIT_S", 0.2)
    monkeypatch.setattr("unhang.check.machine.folders.os.fsync", lambda number: time.sleep(60))
    found = read_folder(tmp_path, writes=True)
    assert found["write_mb_per_s"] == pytest.approx((1 << 20) / 0.2 / 1e6, rel=0.01)
    assert found["write_problem"] == ""


def test_only_old_files_of_processes_that_are_gone_are_left_over(tmp_path: Path) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    names = (f"torch_{gone}_123_0", f"torch_{os.getpid()}_123_1", "nccl-a1B2c3", "sem.mp-x", f"torch_{gone}_9_9")
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 8192)
        os.utime(tmp_path / name, (1, 1))
    assert leftovers(tmp_path) == (), "all are young: a job may have just made them"
    later = time.time() + 3600
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unhang.check.machine.limits.time.time", lambda: later)
        found = {item.name: item for item in leftovers(tmp_path)}
    assert set(found) == {names[0], names[4], "nccl-a1B2c3"}
    assert (found[names[0]].pid, found["nccl-a1B2c3"].pid) == (gone, None)
    assert found[names[0]].size_bytes >= 8192


def test_files_of_nccl_that_are_in_use_are_not_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    path = tmp_path / "nccl-a1B2c3"
    path.write_bytes(b"x" * 4096)
    later = time.time() + 3600
    monkeypatch.setattr("unhang.check.machine.limits.time.time", lambda: later)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftovers(tmp_path) == ()
    assert [item.name for item in leftovers(tmp_path)] == ["nccl-a1B2c3"]
