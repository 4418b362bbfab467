from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.slowness import slowness

from unhang.cli.diagnose import _until_interrupted
from unhang.cli.main import main

LINE = (
    "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={}, "
    "Timeout(ms)=1800000) ran for 1801750 milliseconds before timing out.\n"
)
LOG = LINE.format(1, "_ALLGATHER_BASE") + LINE.format(0, "REDUCE") + LINE.format(5, "_ALLGATHER_BASE")


def diagnosed(path: Path, tmp_path: Path) -> dict[str, Any]:
    report = tmp_path / "report.json"
    assert main(["diagnose", str(path), "--format", "json", "--output", str(report)]) == 1
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("name", ["slurm-4711.out", "033.log", "job.txt", "train_2025-02-18.log"])
def test_a_number_in_the_name_of_a_log_is_no_rank(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(LOG)
    first = diagnosed(tmp_path / name, tmp_path)["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("code-divergence", [0])
    assert first["evidence"][0]["source"] == f"{name}:1"


def test_the_rank_in_the_name_of_a_log_counts(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        (tmp_path / f"train_rank{rank}.log").write_text(
            'Traceback (most recent call last):\n  File "/a/train.py", line 7, in step\nValueError: corrupt\n'
            if rank == 1
            else "step 1\n"
        )
    first = diagnosed(tmp_path, tmp_path)["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("user-exception", [1])


def test_a_log_is_read_from_the_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "diagnose", "-"], input=LOG.encode(), capture_output=True, timeout=50
    )
    assert done.returncode == 1
    assert (
        done.stdout.decode().splitlines()[0].startswith("HANG  rank 0 was in REDUCE #7, ranks 1, 5 in _ALLGATHER_BASE")
    )


def test_an_empty_standard_input_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unhang", "diagnose", "-"], input=b"", capture_output=True, timeout=50 * slowness()
    )
    assert done.returncode in (2, 3)
    assert len(done.stderr.splitlines()) == 1


def test_logs_of_several_nodes_are_one_job(tmp_path: Path) -> None:
    for node, line in enumerate(LOG.splitlines(keepends=True)):
        (tmp_path / f"node{node}.log").write_text(line)
    first = diagnosed(tmp_path, tmp_path)["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("code-divergence", [0])


def test_a_growing_log_is_judged_when_it_says_something(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("step 1 loss 0.3\n")
    following = subprocess.Popen(
        [sys.executable, "-m", "unhang", "diagnose", "--follow", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert following.stdout is not None
    assert following.stderr is not None
    try:
        assert b"following" in following.stderr.readline()
        with path.open("a") as log:
            log.write(LOG)
        assert following.stdout.readline().startswith(b"HANG  rank 0 was in REDUCE #7")
        following.send_signal(signal.SIGINT)
        rest, _ = following.communicate(timeout=30 * slowness())
        assert rest.count(b"HANG") == 0
        assert following.returncode == 1
    finally:
        following.kill()
        following.communicate()


def test_what_an_interrupt_sets_has_no_lock() -> None:
    """The handler runs amid what the main thread does: an Event that this waits for would be locked, and neither would go on."""
    before = signal.getsignal(signal.SIGINT)
    with _until_interrupted() as stopped:
        assert not stopped
        assert not hasattr(stopped, "_cond")
        signal.raise_signal(signal.SIGINT)
        assert stopped
    assert signal.getsignal(signal.SIGINT) is before


def test_following_takes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text("")
    assert main(["diagnose", "--follow", str(tmp_path / "a.log"), str(tmp_path / "a.log")]) == 2
    assert capsys.readouterr().err.startswith("unhang: --follow takes exactly one file")
