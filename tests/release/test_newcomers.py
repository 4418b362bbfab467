"""Five tasks of somebody who has read the README and nothing else: three commands at most for each, all of them in the README."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(
    os.environ.get("UNHANG_TEST_BIN") or Path(sys.executable).parent
)  # of another environment: that of a wheel, say
TRAIN = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
open(f"arrived-{rank}", "w").close()
if dist.get_rank() == 0:
    dist.broadcast(torch.ones(4), src=0)
dist.barrier()
"""
HANGING_LINE = "train.py:8"
JOB = "torchrun --standalone --nproc-per-node 3 train.py"


class Newcomer:
    """Types commands in a folder. Each must be one whose first words the README shows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.typed = folder, 0
        kept = {k: v for k, v in os.environ.items() if not k.startswith("UNHANG")}
        self.environ = {**kept, "PATH": f"{BIN}:{kept['PATH']}", "OMP_NUM_THREADS": "1"}

    def types(self, line: str) -> subprocess.CompletedProcess[str]:
        self.typed += 1
        assert self.typed <= 3, "more than three commands"
        assert re.search(rf"\b{re.escape(' '.join(line.split()[:2]))}\b", README), f"the README does not show {line!r}"
        return subprocess.run(
            line,
            shell=True,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=150 * slowness(),
        )


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    (tmp_path / "train.py").write_text(TRAIN)
    return Newcomer(tmp_path)


@pytest.fixture
def running(newcomer: Newcomer) -> Iterator[int]:
    """A job that hangs and was started without unhang."""
    job = subprocess.Popen(
        JOB.split(), cwd=newcomer.folder, env=newcomer.environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 100 * slowness()
        while len(list(newcomer.folder.glob("arrived-*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(2)
        yield job.pid
    finally:
        job.terminate()  # torchrun ends its ranks, which have sessions of their own
        job.wait(60)


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_name_a_hang(newcomer: Newcomer) -> None:
    done = newcomer.types(f"unhang run -- {JOB}")
    assert done.returncode == 124
    assert HANGING_LINE in done.stderr
    again = newcomer.types("unhang diagnose")
    assert again.returncode == 1
    assert "rank 0" in again.stdout.splitlines()[0]


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_attach_to_a_running_job(newcomer: Newcomer, running: int) -> None:
    done = newcomer.types(f"unhang attach {running}")
    assert done.returncode == 1
    assert HANGING_LINE in done.stdout


def test_diagnose_a_folder_of_dumps(newcomer: Newcomer) -> None:
    dumps = newcomer.folder / "DUMPS"
    dumps.mkdir()
    for rank in (0, 1):
        op, line = ("broadcast", 8) if rank == 0 else ("all_reduce", 9)
        entry = {
            "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0,
            "op_id": 1, "profiling_name": f"nccl:{op}", "time_created_ns": 1, "duration_ms": None,
            "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
            "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": False, "timeout_ms": 600000, "is_p2p": False,
            "frames": [{"name": "<module>", "filename": "train.py", "line": line}],
        }  # fmt: skip
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
        content = {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": [entry]}
        (dumps / f"rank_{rank}.json").write_text(json.dumps({"rank": rank, **content}))
    done = newcomer.types("unhang diagnose DUMPS/")
    assert done.returncode == 1
    assert HANGING_LINE in done.stdout


def test_check_a_machine(newcomer: Newcomer) -> None:
    done = newcomer.types("unhang check --format json")
    assert done.returncode in (0, 1)
    assert json.loads(done.stdout)["schema"] == "unhang.report/1"


def test_put_it_into_ci(newcomer: Newcomer) -> None:
    done = newcomer.types("unhang lint . --format github")
    assert done.returncode == 1
    assert done.stdout.startswith("::")
    assert "train.py" in done.stdout
