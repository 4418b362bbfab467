"""The example with all the guards, through the real torchrun: a healthy training, and one that would have hung."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "hardened_training.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(fault: str, cwd: Path) -> tuple[int, str]:
    process = subprocess.Popen(
        [*TORCHRUN, str(EXAMPLE), "--fault", fault], cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=80)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output


@pytest.mark.torchrun
@pytest.mark.timeout(100)
def test_it_trains(tmp_path: Path) -> None:
    code, output = run("none", tmp_path)
    assert code == 0, output
    for line in (
        "rank 0: 24 steps",
        "rank 1: 24 steps",
        "[train_setup] batch_size = 8",
        "[heartbeat] step 10: 2 ranks",
    ):
        assert line in output, output
    assert "[learning]" not in output, output
    assert "replicas differ" not in output, output


@pytest.mark.torchrun
@pytest.mark.timeout(100)
def test_uneven_batches_are_named(tmp_path: Path) -> None:
    code, output = run("uneven", tmp_path)
    assert code == 1, output
    assert "rank 1 has 22 batches; rank 0 has 24 batches" in output, output
