"""Logs of jobs that ended well, with the warnings that such jobs print: no finding, whatever words are in them.

Real gloo jobs; those named nccl_* are composed from the lines that NCCL prints on success, not taken from a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.healthy_jobs import all_jobs
from unhang.diagnosis import diagnose
from unhang.model import Outcome
from unhang.read.logs.case import case_of_outputs, log_case
from unhang.read.output_log import parse_output
from unhang.rules.registry import judge

LOGS = sorted((Path(__file__).parent / "healthy").glob("*.log"))


def of(path: Path) -> object:
    return pytest.param(path, id=path.stem)


def test_there_are_logs() -> None:
    assert len(LOGS) >= 18


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_a_healthy_log_gets_no_finding(path: Path) -> None:
    diagnosis = diagnose(path)
    assert [o for o in diagnosis.outcomes if o.verdict == "error"] == []
    assert [(f.rule, f.title, f.confidence) for f in diagnosis.findings] == []
    assert diagnosis.hang is None


def test_nor_do_ranks_that_print_their_stacks_now_and_then() -> None:
    """Rank 1 prints nothing else: each time it stands in the same line, though it moves."""
    diagnosis = diagnose(Path(__file__).parent / "healthy_ranks")
    assert [(f.rule, f.title) for f in diagnosis.findings] == []
    assert "stacks of 1 rank (faulthandler)" in diagnosis.inventory.present


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_nor_as_a_collector_hands_it_on(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line.strip()]
    text = "".join(f"2026-01-14T08:12:{i % 60:02d}.5Z [pod/w-0/main] {line}\n" for i, line in enumerate(lines))
    assert [(f.rule, f.title) for f in judge(log_case(text)).findings] == []


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_nor_beside_the_same_log_of_another_machine(path: Path) -> None:
    data = path.read_bytes()
    outputs = [parse_output(data, "node-a.log"), parse_output(data, "node-b.log")]
    assert [(f.rule, f.title) for f in judge(case_of_outputs(outputs)).findings] == []


@pytest.mark.parametrize(("name", "text"), [pytest.param(name, text, id=name) for name, text in all_jobs()])
def test_a_composed_log_of_a_job_that_ended_well_says_so(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.log").write_text(text)
    diagnosis = diagnose(tmp_path / f"{name}.log")
    assert [(f.rule, f.title, f.confidence) for f in diagnosis.findings] == []
    assert (diagnosis.outcome, diagnosis.exit_code) == (Outcome.CLEAN, 0)


def test_a_launcher_that_saw_one_of_two_processes_leave_tells_no_end(tmp_path: Path) -> None:
    """DeepSpeed's says so of each of its processes; the other one may wait for the first."""
    text = (
        "[2026-03-01 10:00:01,301] [INFO] [launch.py:164:main] nnodes=1, num_local_procs=2, node_rank=0\n"
        "[2026-03-01 10:00:01,301] [INFO] [launch.py:164:main] dist_world_size=2\n"
        "[2026-03-01 10:09:00,001] [INFO] [launch.py:351:main] Process 31337 exits successfully.\n"
    )
    (tmp_path / "one.log").write_text(text)
    (tmp_path / "both.log").write_text(text + text.splitlines()[-1].replace("31337", "31338") + "\n")
    assert diagnose(tmp_path / "one.log").outcome is Outcome.UNKNOWN
    assert diagnose(tmp_path / "both.log").outcome is Outcome.CLEAN


def test_there_are_sixty_composed_ones() -> None:
    assert len(dict(all_jobs())) >= 60


@pytest.mark.parametrize("path", [of(path) for path in LOGS])
def test_what_does_not_tell_its_end_is_no_failure(path: Path) -> None:
    diagnosis = diagnose(path)
    assert (diagnosis.outcome, diagnosis.exit_code) in ((Outcome.CLEAN, 0), (Outcome.MOVES, 0), (Outcome.UNKNOWN, 3))
