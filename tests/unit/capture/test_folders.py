from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from unhang.watch import folders
from unhang.watch.folders import LOCK, hold, make_report_dir, make_run_dir, sweep


@pytest.fixture
def no_room_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LONGEST_PATH", 1000)


@pytest.mark.usefixtures("no_room_for_long")
def test_the_run_dir_is_ours_alone(tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path)
    assert run_dir.parent == tmp_path / f"unhang-{os.getuid()}"
    assert run_dir.stat().st_mode & 0o777 == 0o700
    assert run_dir.parent.stat().st_mode & 0o777 == 0o700
    assert make_run_dir(tmp_path) != run_dir


@pytest.mark.usefixtures("no_room_for_long")
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, temporary = tmp_path / "shm", tmp_path / "tmp"
    temporary.mkdir()
    (shared / f"unhang-{os.getuid()}").mkdir(parents=True)
    (shared / f"unhang-{os.getuid()}").chmod(0o777)
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(temporary))
    assert make_run_dir(shared).is_relative_to(temporary)


@pytest.mark.usefixtures("no_room_for_long")
def test_without_room_in_memory_it_is_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.tempfile, "gettempdir", lambda: str(tmp_path))
    assert make_run_dir(tmp_path / "missing").is_relative_to(tmp_path)


def test_old_folders_of_dead_runs_are_removed(tmp_path: Path) -> None:
    dead, used, unknown = (tmp_path / name for name in ("dead", "used", "unknown"))
    for folder in (dead, used, unknown):
        folder.mkdir()
    os.close(hold(dead))
    lock = hold(used)
    now_s = dead.stat().st_mtime + 100
    sweep(tmp_path, now_s, stale_after_s=1000)
    assert dead.exists()
    sweep(tmp_path, now_s, stale_after_s=50)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["unknown", "used"]
    assert (used / LOCK).exists()
    os.close(lock)


def test_the_report_dir_is_made_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_report_dir(Path("a/b"), False, pytest.fail) == tmp_path / "a/b"


def test_a_report_dir_that_another_run_has_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.platform, "node", lambda: "b")
    wanted, lines = tmp_path / "shared", list[str]()
    names = [make_report_dir(wanted, False, lines.append) for _ in range(3)]
    assert names == [wanted, wanted / "b", wanted / "b-2"]
    assert lines == [f"{wanted} holds the report of another run; this one goes to {name}" for name in names[1:]]


def test_runs_that_start_at_one_moment_never_share_a_report_dir(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: make_report_dir(tmp_path / "shared", False, lambda _: None), range(64)))
    assert len(set(found)) == 64


def test_default_report_dirs_of_the_same_second_differ(tmp_path: Path) -> None:
    wanted = tmp_path / "20260101-000000"
    names = [make_report_dir(wanted, True, pytest.fail) for _ in range(3)]
    assert [n.name for n in names if n] == [wanted.name, f"{wanted.name}-2", f"{wanted.name}-3"]


def test_a_report_dir_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    lines: list[str] = []
    folder = make_report_dir(tmp_path / "file" / "below", False, lines.append)
    assert folder
    assert folder.parent == tmp_path
    assert lines == [f"the report cannot go to {tmp_path}/file/below (Not a directory); it goes to {folder}"]


def test_no_report_dir_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders.tempfile, "tempdir", str(tmp_path / "missing"))
    (tmp_path / "file").touch()
    lines: list[str] = []
    assert make_report_dir(tmp_path / "file" / "below", True, lines.append) is None
    assert len(lines) == 1
