"""What is only suspected is said and taken back, never ended; and who ends a job by a signal is told what it was doing."""

from __future__ import annotations

import os
import re
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness

from .faults import Case
from .harness import Result, _kill, _processes, _unhang, check_healthy, result_of, run_job

HERE = Path(__file__).parent
REST = HERE / "programs/rests.py"
FORK = warm.forkrun(2)
TORCHRUN = [*warm.TORCHRUN, "--standalone", "--nproc-per-node=2"]


def test_a_stall_of_a_healthy_job_is_said_and_taken_back(tmp_path: Path) -> None:
    case = Case("rank0_prepares", "programs/rank0_prepares.py", ("seen",), abort_after_s=None)
    result = run_job(case, tmp_path, limit_s=90)
    check_healthy(result)
    first = next(line for line in result.stderr.splitlines() if line.startswith("STALLED"))
    assert "ranks 1-3 wait for rank 0 (" in first, result
    assert "in prepare, rank0_prepares.py:" in first, result
    assert "no hang" in result.stderr.split("STALLED")[1], result
    assert "HANG" not in result.stderr, result


def test_a_job_that_takes_its_time_to_exit_is_not_ended(tmp_path: Path) -> None:
    case = Case("slow_writers", "programs/slow_writers.py", ("8",), abort_after_s=None)
    check_healthy(run_job(case, tmp_path))


@dataclass
class Running:
    """A job under `unhang run` in a session of its own."""

    process: warm.Job
    report_dir: Path

    def say(self, signo: int, to_group: bool) -> None:
        """Sends a signal to the whole group, as a terminal does, or to `unhang run` alone."""
        (os.killpg if to_group else os.kill)(self.process.pid, signo)

    def ends(self) -> Result:
        """Waits for the end, and reads what was left."""
        began = time.monotonic()
        stdout, stderr = self.process.communicate(timeout=40 * slowness())
        seconds = time.monotonic() - began
        return result_of(self.report_dir, self.process.returncode or 0, stdout, stderr, seconds)


@pytest.fixture
def resting(tmp_path: Path, request: pytest.FixtureRequest):
    """A job whose rank 0 rests while rank 1 waits for it."""
    (launcher, *words), token = request.param, uuid.uuid4().hex
    command = [*_unhang(), "run", "--report-dir", str(tmp_path / "report"), "--", *launcher, str(REST), *words]
    process = warm.popen(command, tmp_path, {**os.environ, "UNHANG_TEST_JOB": token})
    assert isinstance(process, warm.WarmJob)
    line = process.first_line(40 * slowness())
    assert "resting" in line
    _wait_for_a_look(Path(line.split()[-1]))
    yield Running(process, tmp_path / "report")
    _kill(_processes(token, process))
    warm.end(process)


def _wait_for_a_look(run_dir: Path) -> None:
    """A signal to the whole group may end the ranks at once: then the last look at the quiet counts."""
    since, deadline = time.time(), time.monotonic() + 20 * slowness()
    taken = ("ranks/*/pyspy.json", "ranks/*/flight.json")

    def seen() -> bool:
        looked = all(sum(path.stat().st_mtime > since for path in run_dir.glob(files)) == 2 for files in taken)
        return looked and any('"collective_seq_id":12,' in path.read_text() for path in run_dir.glob(taken[1]))

    while not seen():
        assert time.monotonic() < deadline, "nobody looked at the quiet job"
        time.sleep(0.05)


LINE = next(i for i, text in enumerate(REST.read_text().splitlines(), 1) if text.endswith("# rest"))
DOING = f"while rank 0 was in rests.py:{LINE} and rank 1 waited in all_reduce #12"


def check_interrupted(result: Result, who: str) -> None:
    report, text = result.report, (result.report_dir / "report.txt").read_text()
    assert report["outcome"] == "interrupted", result
    assert report["findings"][0]["title"] == f"{who} {DOING}", result
    assert report["findings"][0]["culprit_ranks"] == [], result
    assert "completed" not in text, result
    assert re.search(r"The oldest wait had\s+lasted \d+\.\d s", text), result
    assert (result.report_dir / "report.html").exists()


@pytest.mark.parametrize(
    "resting", [(FORK,), pytest.param((TORCHRUN,), marks=[pytest.mark.torchrun, pytest.mark.whole])], indirect=True
)
def test_ctrl_c_keeps_the_answer(resting: Running) -> None:
    resting.say(signal.SIGINT, to_group=True)
    check_interrupted(resting.ends(), "you ended it (Ctrl-C)")


@pytest.mark.parametrize("to_group", [True, False])
@pytest.mark.parametrize("resting", [(FORK,)], indirect=True)
def test_sigterm_keeps_the_answer(resting: Running, to_group: bool) -> None:
    resting.say(signal.SIGTERM, to_group)
    result = resting.ends()
    check_interrupted(result, "SIGTERM ended it")
    assert result.exit_code == 143, result


@pytest.mark.parametrize("resting", [(FORK, "deaf")], indirect=True)
def test_a_second_ctrl_c_ends_at_once_what_the_first_did_not(resting: Running) -> None:
    resting.say(signal.SIGINT, to_group=True)
    time.sleep(0.4)
    resting.say(signal.SIGINT, to_group=True)
    result = resting.ends()
    check_interrupted(result, "you ended it (Ctrl-C)")
    assert result.exit_code == -signal.SIGINT, result
    assert "interrupted twice" in result.stderr, result
