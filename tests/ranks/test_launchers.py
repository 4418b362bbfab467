"""Other ways to start ranks than torchrun: multiprocessing spawn, and plain processes of a shell script."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.slowness import slowness

from .faults import HERE, MARK
from .harness import HUNG_JOB_ENDED, _unhang

CULPRIT_LINES = {
    name: {n for n, text in enumerate((HERE / "programs" / name).read_text().splitlines(), 1) if text.endswith(MARK)}
    for name in (
        "spawned.py",
        "conditional_collective.py",
        "spawned_again.py",
        "unread_queue.py",
        "ray_board.py",
        "orders_of_a_parent.py",
    )
}


def _commands(tmp_path: Path) -> dict[str, tuple[list[str], str, int]]:
    spawned, plain = HERE / "programs" / "spawned.py", HERE / "programs" / "conditional_collective.py"
    return {
        "spawn": ([sys.executable, str(spawned), str(tmp_path / "store")], spawned.name, 2),
        "plain": ([str(HERE / "plainrun.sh"), sys.executable, str(free_port()), str(plain)], plain.name, 0),
    }


def _run(command: list[str], tmp_path: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The command under `unhang run`, and its report."""
    limits = ("--report-dir", str(tmp_path / "report"), "--stall-after", str(5 * slowness()), *options)
    done = subprocess.run(
        [*_unhang(), "run", *limits, "--", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100 * slowness(),
    )
    return done, json.loads((tmp_path / "report" / "report.json").read_text())


@pytest.mark.torchrun
@pytest.mark.timeout(120)
# Plain processes are what the launcher of the tests starts, too, each without an interpreter of its own.
@pytest.mark.parametrize("launcher", ["spawn", pytest.param("plain", marks=pytest.mark.whole)])
def test_a_hang_is_named_under_any_launcher(launcher: str, tmp_path: Path) -> None:
    command, program, culprit = _commands(tmp_path)[launcher]
    done, report = _run(command, tmp_path)
    assert done.returncode == HUNG_JOB_ENDED, done.stderr
    assert report["hang"]["kind"] == "proven"
    first = report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("code-divergence", [culprit])
    assert Path(first["location"]["file"]).name == program
    assert first["location"]["line"] in CULPRIT_LINES[program]


@pytest.mark.torchrun
@pytest.mark.whole
@pytest.mark.timeout(120)
def test_a_queue_that_is_read_too_late(tmp_path: Path) -> None:
    program = HERE / "programs" / "unread_queue.py"
    done, report = _run([sys.executable, str(program), str(tmp_path / "store")], tmp_path, "--abort-after", "1")
    assert done.returncode == HUNG_JOB_ENDED, done.stderr
    first = report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("shutdown-hang", [0])
    assert first["location"]["line"] in CULPRIT_LINES[program.name]


def _spawned_again(tmp_path: Path, then: str) -> list[str]:
    return [sys.executable, str(HERE / "programs" / "spawned_again.py"), str(tmp_path / "store"), then]


def _attempts(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    first = [attempt["findings"][0] for attempt in report["earlier"]]
    return [(f["cause"], f["culprit_ranks"]) for f in first]


@pytest.mark.whole
@pytest.mark.torchrun
@pytest.mark.timeout(120)
def test_a_program_that_spawns_its_ranks_again_and_recovers_is_clean(tmp_path: Path) -> None:
    done, report = _run(_spawned_again(tmp_path, "recovers"), tmp_path)
    assert (done.returncode, report["outcome"], report["findings"]) == (0, "clean", []), done.stderr
    assert _attempts(report) == [("user-exception", [1])]
    assert "after one restart: 3 ranks ran to the end (exit code 0); attempt 0: rank 1 raised OSError" in done.stderr


@pytest.mark.whole
@pytest.mark.torchrun
@pytest.mark.timeout(120)
def test_a_hang_of_ranks_that_were_spawned_again_is_theirs(tmp_path: Path) -> None:
    done, report = _run(_spawned_again(tmp_path, "hangs"), tmp_path, "--abort-after", str(5 * slowness()))
    first = report["findings"][0]
    assert (done.returncode, first["culprit_ranks"]) == (HUNG_JOB_ENDED, [2]), done.stderr
    assert first["location"]["line"] in CULPRIT_LINES["spawned_again.py"]
    assert _attempts(report) == [("user-exception", [1])]


@pytest.mark.whole
def test_ranks_whose_pythonpath_was_replaced_are_looked_at_from_outside(tmp_path: Path) -> None:
    """They have no recorder; the evidence is that of `unhang attach`."""
    program = tmp_path / "train.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "read, write = os.pipe()\n"
        "if dist.get_rank() == 1: os.read(read, 1)\n"
        "dist.barrier()\n"
    )
    script = tmp_path / "run.sh"
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 {program}"
    script.write_text(f"export PYTHONPATH={tmp_path}\nexec {torchrun}\n")
    done, report = _run(["bash", str(script)], tmp_path, "--abort-after", str(10 * slowness()))
    assert "2 ranks run without unhang's recorder" in done.stderr
    assert done.returncode == HUNG_JOB_ENDED
    first = report["findings"][0]
    assert (report["outcome"], first["cause"], first["culprit_ranks"]) == ("hang", "rank-stuck-in-user-code", [1]), (
        first
    )
    assert first["location"]["line"] == 4


@pytest.mark.timeout(150)
@pytest.mark.parametrize("fault", ["hang", "full", "slow"])
def test_learners_of_ray_that_all_wait_for_actors(fault: str, tmp_path: Path) -> None:
    """Nobody is in a call of a group. Who only takes its time, asleep, is not accused, and not ended."""
    pytest.importorskip("ray")
    program, slow_s = HERE / "programs" / "ray_board.py", 12.0 * slowness() if fault == "slow" else 0.0
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:  # the names of Ray's sockets are long
        command = [sys.executable, str(program), fault, short, str(slow_s)]
        more = ("--stall-after", str(4 * slowness())) if fault == "full" else ()
        done, report = _run(command, tmp_path, "--abort-after", "1", *more)
    if fault == "slow":
        assert (done.returncode, report["outcome"]) == (0, "clean"), done.stderr
        assert "suspected" not in done.stderr
        return
    assert done.returncode == HUNG_JOB_ENDED, done.stderr
    assert report["hang"]["kind"] == "suspected"
    first = report["findings"][0]
    assert (first["rule"], first["culprit_ranks"]) == ("nobody-at-work", [])
    assert Path(first["location"]["file"]).name == program.name
    assert first["location"]["line"] in CULPRIT_LINES[program.name]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", ["hang", "slow"])
def test_who_waits_for_an_order_after_a_failure(fault: str, tmp_path: Path) -> None:
    """No rank waits for another one, and nothing is at work. A parent that sleeps for long is not accused."""
    program, slow_s = HERE / "programs" / "orders_of_a_parent.py", 0.0 if fault == "hang" else 9.0 * slowness()
    command = [sys.executable, str(program), str(free_port()), str(slow_s)]
    done, report = _run(command, tmp_path, "--abort-after", "1")
    if fault == "slow":
        assert (done.returncode, report["outcome"]) == (0, "clean"), done.stderr
        assert "suspected" not in done.stderr
        return
    assert done.returncode == HUNG_JOB_ENDED, done.stderr
    first = report["findings"][0]
    assert (first["cause"], first["culprit_ranks"]) == ("user-exception", [1])
    assert first["location"]["line"] in CULPRIT_LINES[program.name]
    assert report["hang"]["kind"] == "suspected"
    assert "a rank has failed, and the others wait for what no process of the job gives them" in done.stderr
