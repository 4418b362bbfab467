"""Sections, heartbeats and loaders in real jobs: without the guard the job hangs in silence; with it somebody says why."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import warm
from tests.slowness import slowness

from .harness import _unhang

LIMIT_S = 50.0

# Rank 1 does something else instead of the fourth weight sync; the others wait for it in the collective.
WEIGHT_SYNC = """
import sys, time
import torch
import torch.distributed as dist
import unhang
from unhang.inside.guards.section import section
from unhang.inside.guards.process_group import process_group

action = sys.argv[1]

def wait_for_new_data():
    time.sleep(600)

def train():
    weights = torch.zeros(4)
    for step in range(10):
        if step == 3 and dist.get_rank() == 1:
            wait_for_new_data()
        if action == "none":
            dist.all_reduce(weights)
            continue
        with section("weight_sync", limit_s=0.5, on_overrun=action):
            dist.all_reduce(weights)

with process_group("gloo", timeout=60):
    train()
"""

# Rank 2 does not come to step 20: it reads for ever (`stuck`), or is gone without a word (`killed`).
STEPS = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from unhang.inside.guards.heartbeat import heartbeat
from unhang.inside.guards.process_group import process_group

fault, has_heartbeat = sys.argv[1], sys.argv[2] == "with"

def read_for_ever():
    time.sleep(600)

with process_group("gloo", timeout=60):
    rank = dist.get_rank()
    hb = heartbeat(every=10, limit=1.5) if has_heartbeat else None
    for step in range(30):
        if step == 20 and rank == 2:
            if fault == "stuck":
                read_for_ever()
            if fault == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
        if fault != "slow":
            dist.all_reduce(torch.zeros(4))
        time.sleep(0.2 if fault == "slow" and rank == 2 and step == 25 else 0.01)
        if hb:
            hb.step(loss=1.0 / (step + 1))
    if hb:
        hb.close()
"""

# A worker of rank 1 is killed, as by the kernel, or one stands still; the other ranks wait in the collective.
BATCHES = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from unhang.inside.guards.loader import watch_loader
from unhang.inside.guards.forecast import check_loader
from unhang.inside.guards.process_group import process_group

fault, has_guard = sys.argv[1], sys.argv[2] == "with"

class Data(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 6 and os.environ["RANK"] == "1":
            if fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return torch.ones(3)

with process_group("gloo", timeout=60):
    loader = DataLoader(Data(), batch_size=2, num_workers=1)
    if has_guard:
        assert [f.what for f in check_loader(loader)] == ["timeout"]
    for batch in watch_loader(loader, limit_s=1) if has_guard else loader:
        dist.all_reduce(batch)
"""

# The script makes and destroys the groups itself and closes no heartbeat; one batch of rank 1 takes long.
PLAIN = """
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from unhang.inside.guards.heartbeat import heartbeat
from unhang.inside.guards.section import section

class Data(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(1.0 if index == 45 and dist.get_rank() == 1 else 0.01)
        return torch.ones(3)

dist.init_process_group("gloo")
hb = heartbeat(every=20, limit=3, slow=20)  # a busy machine makes many a step twice as long
for batch in DataLoader(Data()):
    with section("sync", limit_s=20):
        dist.all_reduce(batch)
    hb.step()
time.sleep(0.3)
dist.destroy_process_group()
time.sleep(3.5)
"""


@dataclass(frozen=True)
class Done:
    code: int | None
    output: str


def run(
    tmp_path: Path, script: str, *arguments: str, ranks: int = 4, limit_s: float = LIMIT_S, until: str = "\0"
) -> Done:
    """A job of the fork launcher, ended with all that it had started when `until` is told or the limit is over."""
    path, output = tmp_path / "train.py", tmp_path / "output"
    path.write_text(script)
    with output.open("w") as file:
        job = warm.start(warm.forkrun("--eager", ranks, path, *arguments), tmp_path, file.fileno())
        deadline = time.monotonic() + limit_s * slowness()
        while (code := job.poll()) is None and time.monotonic() < deadline:
            if until in output.read_text(errors="replace"):
                break
            time.sleep(0.1)
        job.close()
    return Done(code, output.read_text(errors="replace"))


def test_without_a_section_the_ranks_wait_in_silence(tmp_path: Path) -> None:
    done = run(tmp_path, WEIGHT_SYNC, "none", limit_s=5)
    assert done.code is None
    assert "weight_sync" not in done.output


def test_an_overrun_names_the_rank_that_has_not_come_and_its_line(tmp_path: Path) -> None:
    done = run(tmp_path, WEIGHT_SYNC, "tell", until="work.wait()")
    assert done.code is None
    assert "'weight_sync' is over its limit of 0.5 s: thread MainThread" in done.output, done.output
    assert "for the 4th time" in done.output
    line = WEIGHT_SYNC.splitlines().index("    time.sleep(600)") + 1
    assert f"entered it only 3 times, not 4 times, at train.py:{line} in wait_for_new_data: rank 1" in done.output
    assert "inside (for up to" in done.output
    assert "dist.all_reduce(weights)" in done.output


def test_stop_ends_all_ranks_with_the_section_named(tmp_path: Path) -> None:
    done = run(tmp_path, WEIGHT_SYNC, "stop", limit_s=30)
    assert done.code == 1, done.output
    assert "failed: section 'weight_sync' is over its limit of 0.5 s" in done.output


def test_without_a_heartbeat_a_stuck_rank_is_silent(tmp_path: Path) -> None:
    done = run(tmp_path, STEPS, "stuck", "without", limit_s=5)
    assert done.code is None
    assert "rank 2 is" not in done.output


def test_a_job_that_stands_says_where_each_rank_is(tmp_path: Path) -> None:
    done = run(tmp_path, STEPS, "stuck", "with", until="no rank has ended a step for")
    assert done.code is None
    assert "[heartbeat] step 10: 4 ranks" in done.output
    assert "[heartbeat] step 20: 4 ranks" in done.output
    assert done.output.count("no rank has ended a step for") == 1, done.output
    line = STEPS.splitlines().index("    time.sleep(600)") + 1
    assert f"rank 2 at step 20, at train.py:{line} in read_for_ever" in done.output
    assert "ranks 0, 1, 3 at step 20, at train.py:" in done.output


def test_a_stopped_rank_is_named_by_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, STEPS, "stopped", "with", until="no sign of life")
    assert done.code is None
    assert done.output.count("rank 2 has given no sign of life for") == 1, done.output


def test_a_healthy_job_with_a_slow_rank_ends_well_and_names_nobody_as_gone(tmp_path: Path) -> None:
    done = run(tmp_path, STEPS, "slow", "with", limit_s=30)
    assert done.code == 0, done.output
    assert "[heartbeat] step 30: 4 ranks" in done.output
    assert "no sign of life" not in done.output
    assert "terminate called" not in done.output


def test_after_the_end_of_the_groups_nobody_is_missed(tmp_path: Path) -> None:
    done = run(tmp_path, PLAIN, ranks=2)
    assert done.code == 0, done.output
    assert "[heartbeat] step 60: 2 ranks" in done.output
    for wrong in ("sign of life", "no rank has ended a step", "terminate called", "Traceback", "Broken pipe"):
        assert wrong not in done.output, done.output


def test_under_unhang_run_the_phases_are_known(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(PLAIN)
    command = [*_unhang(), "run", "--report-dir", str(tmp_path / "report"), "--", *warm.forkrun("--eager", 2, path)]
    done = warm.run(command, tmp_path, LIMIT_S * slowness())
    assert done.returncode == 0, done.stderr
    assert "[heartbeat] rank 1: step 46 took 1" in done.stderr, done.stderr
    assert "x this job's median of 0.0" in done.stderr
    assert ": data 9" in done.stderr or ": data 100 %" in done.stderr


def test_without_the_watch_a_stuck_worker_is_silent(tmp_path: Path) -> None:
    done = run(tmp_path, BATCHES, "stuck", "without", ranks=2, limit_s=5)
    assert done.code is None
    assert "worker" not in done.output


def test_a_stuck_worker_is_named_with_its_rank(tmp_path: Path) -> None:
    done = run(tmp_path, BATCHES, "stuck", "with", ranks=2, until="whose batch is next")
    assert done.code is None
    assert "timeout: loader.timeout is 0" in done.output
    assert "until the process group's timeout of 60 s is over" in done.output
    assert "[loader] rank 1: the loop has waited for a batch for" in done.output
    assert "[loader] worker 0 (pid " in done.output
    assert " whose batch is next: waiting" in done.output


def test_a_killed_worker_is_named_on_all_ranks(tmp_path: Path) -> None:
    done = run(tmp_path, BATCHES, "killed", "with", ranks=2, limit_s=20)
    assert done.code == 1
    assert "[loader] rank 1: worker 0 (pid " in done.output, done.output
    assert "was killed by SIGKILL: usually the kernel, because memory ran out" in done.output
    assert "rank 1 failed: RuntimeError: DataLoader worker" in done.output


@pytest.mark.whole
@pytest.mark.torchrun
def test_under_torchrun_a_section_stops_the_job(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(WEIGHT_SYNC)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path), "stop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S * slowness(),
    )
    assert done.returncode == 1
    assert "rank 0 failed: section 'weight_sync' is over its limit of 0.5 s" in done.stderr, done.stderr
    assert "entered it only 3 times, not 4 times" in done.stderr
