"""A log that grows while it is read. The tests write to the file where the reader would pause."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from unhang.errors import UnreadableInput
from unhang.read.logs import source as follow_module
from unhang.read.logs.scan_engines import GramEngine
from unhang.read.logs.source import FollowedLog, follow

TIMEOUT = (
    "[rank1]:[E228 02:40:22.57 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=532339, OpType=BROADCAST, NumelIn=5164000, NumelOut=5164000, Timeout(ms)=1800000) ran for 1800042 "
    "milliseconds before timing out."
)
TRACE = 'Traceback (most recent call last):\n  File "t.py", line 9, in main\n    f()\nValueError: bad batch\n'


def played(path: Path, steps: Sequence[Callable[[], object]]) -> list[tuple[int, str]]:
    """All lines, when a step is done in each pause and the end comes after the last."""
    left = list(steps)
    found: list[tuple[int, str]] = []
    for lines in follow(path, stop=lambda: not left, pause=lambda _: left.pop(0)()):
        found += lines
    return found


def add(path: Path, text: str) -> Callable[[], object]:
    def write() -> None:
        with path.open("a", newline="") as f:
            f.write(text)

    return write


def test_lines_are_given_when_they_end_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    found = played(path, [add(path, "one\ntw"), add(path, ""), add(path, "o\r\nthr"), add(path, "ee"), lambda: None])
    assert found == [(1, "one"), (2, "two"), (3, "three")]


def test_a_character_cut_in_two_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes("caf\u00e9".encode()[:-1])

    def rest() -> None:
        with path.open("ab") as f:
            f.write("\u00e9\n".encode()[1:])

    assert played(path, [rest, lambda: None]) == [(1, "caf\u00e9")]


def test_a_replaced_file_is_read_to_its_end_and_the_new_one_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("a\nb\n")

    def rotate() -> None:
        add(path, "late")()
        os.rename(path, tmp_path / "job.log.1")

    def new() -> None:
        path.write_text("c\nd\n")

    assert played(path, [rotate, new, lambda: None]) == [(1, "a"), (2, "b"), (3, "late"), (1, "c"), (2, "d")]


def test_a_cut_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("a\nb\nunfinished")
    found = played(path, [lambda: path.write_text("new\n"), lambda: None])
    assert found == [(1, "a"), (2, "b"), (3, "unfinished"), (1, "new")]


def test_a_line_that_never_ends_is_given_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "MAX_PARTIAL_BYTES", 1000)
    monkeypatch.setattr(follow_module, "BATCH_BYTES", 700)
    path = tmp_path / "job.log"
    path.write_bytes(b"".join(b" %d%%|##| %d/100 [00:01\r" % (i, i) for i in range(100)) + b"\nend\n")
    found = played(path, [lambda: None])
    assert {number for number, _ in found} == {1, 2}
    assert found[-1] == (2, "end")
    assert (1, " 99%|##| 99/100 [00:01") in found
    assert 2 < len(found) < 10


def test_a_writer_that_never_pauses_does_not_keep_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "BATCH_BYTES", 16)
    path = tmp_path / "job.log"
    path.write_text("0123456\n" * 4)
    batches = 0
    for lines in follow(path, stop=lambda: True, pause=lambda _: None):
        batches += bool(lines)
        add(path, "0123456\n" * 10)()
    assert 2 <= batches <= 4


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="not a plain file"):
        next(follow(tmp_path, stop=lambda: False))


def test_new_lines_of_weight_are_told_and_kept() -> None:
    log = FollowedLog("job.log", make=GramEngine)
    number = 0

    def take(text: str) -> tuple[str, ...]:
        nonlocal number
        lines = list(enumerate(text.splitlines(), number + 1))
        number += len(lines)
        return log.take(lines)

    assert take("step 1\n" * 500) == ()
    assert "watchdog.timeout" in take(TIMEOUT)
    assert "watchdog.timeout" in take(TIMEOUT)
    assert take("step 2\n" * 1500) == ()
    assert "traceback" in take(TRACE + "step 3\n" * 2000)
    output = log.output()
    shown = {line.source.line: line.text for line in output.lines}
    assert "SeqNum=532339" in shown[501]
    assert shown[number] == "step 3"
    assert [error.type for _, error in output.errors] == ["ValueError"]
    assert len(output.lines) < 1000
    assert len(output.lines) + output.omitted_lines == number


def test_what_a_file_said_before_it_was_replaced_is_kept() -> None:
    log = FollowedLog(make=GramEngine)
    log.take([(1, "start"), (2, TIMEOUT), (3, "end")])
    assert log.take([(4, "more"), (1, "a new file"), (2, "goes on")]) == ()
    assert [(line.source.line, line.text[:10]) for line in log.output().lines if "rank" not in line.text][:3] == [
        (1, "start"),
        (2, "[E228 02:4"),
        (3, "end"),
    ]
    assert [line.text for line in log.output().lines][-3:] == ["more", "a new file", "goes on"]


def test_a_line_seen_in_parts_counts_once() -> None:
    log = FollowedLog(make=GramEngine)
    log.take([(1, "start"), (2, "an Error: message"), (2, "100%|##| 3/3 [00:01"), (3, "next")])
    log.take([(3, "still the same line"), (4, "last")])
    assert log.output().lines[-1].source.line == 4
