from __future__ import annotations

import errno
import json
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from unhang.read.environment import REDACTED
from unhang.watch.folders import copy_bundle, save_bundle


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    rank = tmp_path / "run" / "ranks" / "r0-17"
    rank.mkdir(parents=True)
    (tmp_path / "run" / "job.json").write_text("{}")
    (tmp_path / "run" / ".lock").touch()
    (rank / "page.bin").write_bytes(bytes(1000))
    (rank / "flight.pickle.tmp").write_bytes(b"half")
    (rank / "identity.json").write_text(json.dumps({"rank": 0, "argv": ["train.py", "--token", "abc"]}))
    (rank / "link").symlink_to("/etc/passwd")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as control:
        control.bind(str(rank / "ctl.sock"))
    return tmp_path / "run"


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def disk_full(source: Path, target: Path) -> None:
    """Has room for small files only."""
    if source.stat().st_size > 500:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")
    shutil.copyfile(source, target)


def test_files_are_copied_and_sockets_are_not(run_dir: Path, tmp_path: Path) -> None:
    copy_bundle(run_dir, tmp_path / "bundle")
    assert names(tmp_path / "bundle") == ["job.json", "ranks/r0-17/identity.json", "ranks/r0-17/page.bin"]
    identity = json.loads((tmp_path / "bundle/ranks/r0-17/identity.json").read_text())
    assert identity == {"rank": 0, "argv": ["train.py", "--token", REDACTED]}


def test_a_cut_identity_is_copied_as_it_is(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "ranks/r0-17/identity.json").write_bytes(b'{"rank": \xff')
    copy_bundle(run_dir, tmp_path / "bundle")
    assert (tmp_path / "bundle/ranks/r0-17/identity.json").read_bytes() == b'{"rank": \xff'


def test_nothing_makes_room_but_the_empty_folder_that_was_made_for_it(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    copy_bundle(run_dir, tmp_path / "bundle")
    before = names(tmp_path / "bundle")
    (run_dir / "ranks/r0-17/page.bin").unlink()
    with pytest.raises(OSError, match="not empty"):
        copy_bundle(run_dir, tmp_path / "bundle")
    assert names(tmp_path / "bundle") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    with pytest.raises(OSError, match="not empty"):
        copy_bundle(run_dir, tmp_path / "mine")
    assert names(tmp_path / "mine") == ["thesis"]


def test_a_saved_bundle_is_all_that_remains(run_dir: Path, tmp_path: Path) -> None:
    bundle = save_bundle(run_dir, tmp_path / "report", pytest.fail)
    assert bundle == tmp_path / "report" / "bundle"
    assert not run_dir.exists()


def test_a_full_disk_is_one_line_and_another_folder(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    report_dir = tmp_path / "report"
    lines: list[str] = []

    def full_there(source: Path, target: Path) -> None:
        (disk_full if target.is_relative_to(report_dir) else shutil.copyfile)(source, target)  # type: ignore[operator]

    bundle = save_bundle(run_dir, report_dir, lines.append, full_there)
    assert bundle.is_relative_to(tmp_path)
    assert "ranks/r0-17/page.bin" in names(bundle)
    assert list(report_dir.iterdir()) == []
    assert not run_dir.exists()
    assert lines == [f"the evidence cannot go to {report_dir} (No space left on device); it goes to {bundle}"]


def test_without_any_disk_the_evidence_stays_in_memory(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lines: list[str] = []
    assert save_bundle(run_dir, None, lines.append, disk_full) == run_dir
    assert "ranks/r0-17/page.bin" in names(run_dir)
    assert lines == [f"there is no folder for the report; it stays in {run_dir}"]
