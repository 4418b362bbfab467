"""Six ways in which a rank ends, under torchrun, torch.multiprocessing and Ray: within ten seconds of a quiet machine all is over, and nothing is left."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.slowness import slowness

from .guarded import Ended, listens, run

HERE = Path(__file__).parent
LIMIT_S = 10.0
# Ranks that are spawned have workers that are spawned. Those look for their rank every five seconds, and nothing of ours runs
# in them when it has ended; forked ones go with it.
SPAWNED_WORKER_S = 5.0
# What must be told of each fault, by whatever the launcher shows.
TOLD = {
    "raises": "ValueError: bad sample",
    "killed": "rank 1 failed: no sign of life|rank 1 .*has ended without an error of its training|SIGKILL",
    "stopped": "rank 1 failed: it was stopped by a signal",
    "leaves": r"rank 1 failed: it left with sys\.exit\(0\)",
    "deaf": "ValueError: bad sample",
    "raises_at_end": "OSError: disk full",
}
CULPRIT = {how: 0 if how == "deaf" else 1 for how in TOLD}
# Each start of torchrun costs 6 s of CPU time; the other two launchers have all faults in every run.
UNDER_TORCHRUN = ("stopped",)
PROGRAM = (HERE / "teardown_job.py").read_text()


def since_fault(folder: Path, ended_at: float) -> float:
    return ended_at - float((folder / "fault").read_text())


def check_nobody_is_left(folder: Path, more_s: float = 0.0) -> None:
    """No rank and no loader worker of it. They may have until the end of the limit, as the job has."""
    pids = [int(pid) for file in folder.glob("pids-*") for pid in file.read_text().split()]
    assert len(pids) == 4, pids
    until = float((folder / "fault").read_text()) + LIMIT_S * slowness() + more_s
    while (left := [pid for pid in pids if _is_there(pid)]) and time.time() < until:
        time.sleep(0.05)
    assert not left, [Path(f"/proc/{pid}/status").read_text() for pid in left]


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def check(how: str, folder: Path, ended: Ended, is_spawned: bool = False) -> None:
    assert ended.exit_code != 0, ended
    assert re.search(TOLD[how], ended.err), ended
    assert f"rank {1 - CULPRIT[how]} failed" not in ended.err, ended
    assert since_fault(folder, ended.ended_at) <= LIMIT_S * slowness(), ended
    check_nobody_is_left(folder, SPAWNED_WORKER_S if is_spawned else 0.0)


@pytest.mark.torchrun
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=[pytest.mark.whole] * (how not in UNDER_TORCHRUN)) for how in TOLD]
)
def test_torchrun(how: str, tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, "torchrun", how, str(tmp_path), launcher="torchrun", limit_s=55)
    check(how, tmp_path, ended)
    root = ended.err.partition("Root Cause (first observed failure)")[2]
    assert re.search(TOLD[how], root), ended.err
    if how in ("raises", "killed", "deaf", "raises_at_end"):
        # The others end by themselves, by what the first one's peers raise.
        assert re.search(rf"rank +: {CULPRIT[how]} ", root), ended


# A fork spares the imports; all else of torch.multiprocessing is the same.
@pytest.mark.parametrize(
    ("how", "method"), [*((how, "fork") for how in TOLD), pytest.param("stopped", "spawn", marks=pytest.mark.whole)]
)
def test_multiprocessing(how: str, method: str, tmp_path: Path) -> None:
    ended = run(PROGRAM, tmp_path, method, how, str(tmp_path), "{port}", launcher="none")
    check(how, tmp_path, ended, is_spawned=method == "spawn")
    raised = ended.err.rpartition("torch.multiprocessing.spawn.Process")[2]
    # Of a rank that was ended from a thread of ours, the parent knows the exit code only.
    assert re.search("with exit code 1" if how == "stopped" else TOLD[how], raised), ended


@pytest.fixture(scope="module")
def after_ray() -> Iterator[Path]:
    """One session of Ray that has seen all faults, one after the other."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the paths of Ray's sockets may have 107 characters
    for how in TOLD:
        (folder / how).mkdir()
        (folder / how / "port").write_text(str(free_port()))
    ended = run(
        PROGRAM, folder, "ray", ",".join(TOLD), str(folder), launcher="none", limit_s=170,
        environment={"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert ended.exit_code == 0, ended
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.whole
@pytest.mark.timeout(200)
@pytest.mark.parametrize("how", TOLD)
def test_ray(how: str, after_ray: Path) -> None:
    folder = after_ray / how
    said = (folder / "said").read_text()
    assert since_fault(folder, float((folder / "ended").read_text())) <= LIMIT_S * slowness(), said
    assert "ended well" not in said
    if how == "stopped":
        # Of an actor that was ended from a thread of ours, the driver knows the end only; the reason is in the worker's file.
        rank_0, _ = (folder / "pids-0").read_text().split()
        (file,) = after_ray.glob(f"r/session_2*/logs/worker-*-{rank_0}.err")
        said += file.read_text()
    assert re.search(TOLD[how], said), said
    assert f"rank {1 - CULPRIT[how]} failed" not in said, said
    check_nobody_is_left(folder)
    assert not listens(int((folder / "port").read_text()))
