from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from jobs import header, ring

from unhang.inside.recorder import recording
from unhang.inside.recorder.frames import encode
from unhang.inside.recorder.recording import Page


@pytest.fixture
def written(tmp_path: Path) -> Page:
    return Page(str(tmp_path / "page.bin"))


def test_layout(written: Page, tmp_path: Path) -> None:
    assert (tmp_path / "page.bin").stat().st_size == 72 * 1024
    assert header(tmp_path)[:2] == (0x31474E41484E55, 1)
    assert header(tmp_path)[recording.HEARTBEAT] > 0


def test_record_is_pending_until_ended(written: Page, tmp_path: Path) -> None:
    number = written.begin(recording.RECV, 3, 1, 7, encode("0", "", (("/a/b.py", 4, "f"), ("/a/c.py", 9, "g"))))
    (record,) = ring(tmp_path)
    assert (record.kind, record.peer, record.index, record.tag, record.ended_ns) == (2, 3, 1, 7, 0)
    assert (record.group, record.detail, record.frames) == ("0", "", ["/a/b.py:4:f", "\x1ec.py:9:g"])
    written.end(number)
    assert ring(tmp_path)[0].ended_ns >= record.started_ns
    assert header(tmp_path)[recording.RECORDS] == 1


def test_pending_blocking_call_is_never_overwritten(written: Page, tmp_path: Path) -> None:
    stuck = written.begin(recording.NEW_GROUP, -1, 1, 0, b"\x1f0,1\x1f")
    for i in range(700):
        written.end(written.begin(recording.SEND, 1, i + 1, 0, b"\x1f\x1f"))
    pending = [r for r in ring(tmp_path) if not r.ended_ns]
    assert [(r.number, r.detail) for r in pending] == [(stuck, "0,1")]
    assert len(ring(tmp_path)) == 256


def test_posted_calls_that_nobody_waits_for_are_overwritten(written: Page, tmp_path: Path) -> None:
    for i in range(300):
        written.begin(recording.ISEND, 1, i + 1, 0, b"\x1f\x1f")
    assert sorted(r.index for r in ring(tmp_path)) == list(range(45, 301))


def test_since_when_a_posted_call_is_waited_for(written: Page, tmp_path: Path) -> None:
    number = written.begin(recording.IRECV, 3, 1, 7, b"0\x1f\x1f")
    for _ in range(2):
        written.wait_for(number)
    (record,) = ring(tmp_path)
    assert record.kind == recording.IRECV
    assert 1 <= record.awaited_us < 60_000_000
    assert not written.has_open_record()
    written.end(number)
    assert ring(tmp_path)[0].ended_ns >= record.started_ns


def test_a_wait_for_an_overwritten_record_changes_nothing(written: Page, tmp_path: Path) -> None:
    first = written.begin(recording.ISEND, 1, 1, 0, b"\x1f\x1f")
    for i in range(256):
        written.begin(recording.ISEND, 1, i + 2, 0, b"\x1f\x1f")
    written.wait_for(first)
    assert {(r.kind, r.awaited_us) for r in ring(tmp_path)} == {(recording.ISEND, 0)}


def test_end_of_an_overwritten_record_changes_nothing(written: Page, tmp_path: Path) -> None:
    first = written.begin(recording.ISEND, 1, 1, 0, b"\x1f\x1f")
    for i in range(256):
        written.begin(recording.ISEND, 1, i + 2, 0, b"\x1f\x1f")
    written.end(first)
    assert not any(r.ended_ns for r in ring(tmp_path))


def test_short_waits_do_not_push_out_the_history(written: Page, tmp_path: Path) -> None:
    written.end(written.begin(recording.SEND, 1, 1, 0, b"\x1f\x1f"))
    for i in range(600):
        number = written.begin(recording.STORE_WAIT, -1, i + 1, 0, b"\x1fkey\x1f")
        written.end(number)
        written.give_back(number)
    assert [r.kind for r in ring(tmp_path)] == [recording.SEND, recording.STORE_WAIT]


def test_negative_counts_and_full_status_table(written: Page) -> None:
    assert written.set_status(0, -1, -1)
    assert written.words[512:515].tolist() == [1, (1 << 64) - 1, (1 << 64) - 1]
    assert all(written.set_status(i, i, i) for i in range(1, 128))
    assert not written.set_status(500, 1, 1)
    assert written.set_status(127, 9, 8)


def test_disk_that_cannot_hold_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    shadow = Page(str(tmp_path / "page.bin"))
    shadow.end(shadow.begin(recording.SEND, 0, 1, 0, b""))
    assert "No space left" in shadow.problem
    assert isinstance(shadow._map, mmap.mmap)


def test_phase_is_restored(written: Page, tmp_path: Path) -> None:
    assert written.enter(recording.BACKWARD) == recording.NONE
    assert written.enter(recording.CHECKPOINT) == recording.BACKWARD
    assert header(tmp_path)[recording.PHASE] == recording.CHECKPOINT
