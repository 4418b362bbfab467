"""`pytest --unhang`: jobs that tests start themselves."""

from __future__ import annotations

import pytest

from tests.pytest_plugin.test_run_ranks import failures
from tests.slowness import slowness
from tests.warm import FORKRUN

pytest_plugins = ["pytester"]

SUITE = (
    f"""
LAUNCHER = {str(FORKRUN)!r}
"""
    + """
import os, subprocess, sys
from datetime import timedelta
import pytest
import torch, torch.distributed as dist, torch.multiprocessing as mp

PROGRAM = '''
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()
dist.all_reduce(torch.ones(2))
'''

def begin(rank, store, seconds=1800, world=2):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=seconds))

def diverges(rank, store, seconds=1800):
    begin(rank, store, seconds)
    if rank == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(2))

def agrees(rank, store):
    begin(rank, store, world=1)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()

def fails(rank, store):
    begin(rank, store, world=1)
    raise ValueError("corrupt batch")

def test_hang(tmp_path):
    mp.spawn(diverges, (tmp_path / "store",), nprocs=2)

def test_healthy(tmp_path):
    before = dict(os.environ)
    mp.spawn(agrees, (tmp_path / "store",), nprocs=1)
    assert dict(os.environ) == before

def test_launcher_whose_end_is_not_looked_at(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    subprocess.run([sys.executable, LAUNCHER, "--eager", "2", tmp_path / "train.py"])

def test_exception(tmp_path):
    mp.spawn(fails, (tmp_path / "store",), nprocs=1)

@pytest.mark.no_unhang
def test_left_alone(tmp_path):
    assert "UNHANG_RUN_DIR" not in os.environ
    with pytest.raises(mp.ProcessRaisedException, match="(?i)timed out|timeout|connection closed"):
        mp.start_processes(diverges, (tmp_path / "store", 2), nprocs=2, start_method="fork")

def test_no_job():
    assert os.environ["UNHANG_RUN_DIR"]

def test_fails_without_a_job():
    assert 1 == 2
"""
)
_BARRIER = 1 + [line.strip() for line in SUITE.strip().splitlines()].index("if rank == 1:") + 1


@pytest.mark.timeout(240)
def test_jobs_that_tests_start(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_jobs=SUITE)
    pytester.runpytest_subprocess(
        "--unhang",
        "-n",
        "2",
        "--strict-markers",
        "--junitxml=all.xml",
        "--unhang-reports=kept",
        timeout=220 * slowness(),
    )
    found = failures(pytester.path / "all.xml")
    assert len(found) == 7
    hang, ignored = found.pop("test_hang"), found.pop("test_launcher_whose_end_is_not_looked_at")
    for text, line in ((hang, f"test_jobs.py:{_BARRIER}"), (ignored, "train.py:5")):
        assert "code-divergence" in text
        assert line in text
        assert "what to do: " in text
    assert "rank 1" in hang.splitlines()[0]  # the verdict comes before what mp.spawn says
    raised = found.pop("test_exception")
    assert "ValueError: corrupt batch" in raised
    assert "user-exception" in raised
    plain = found.pop("test_fails_without_a_job")
    assert "assert 1 == 2" in plain
    assert "report.html" not in plain
    assert set(found.values()) == {""}
    kept = {folder.name.rpartition("-")[0] for folder in (pytester.path / "kept").iterdir()}
    assert kept == {"test_hang", "test_launcher_whose_end_is_not_looked_at"[:40].rstrip("-"), "test_exception"}


def test_without_a_folder_the_tests_run_unwatched(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from unhang.watch import folders

        def full():
            raise folders.NoFolder("no temporary folder can be written")

        folders.make_run_dir = full
        """
    )
    pytester.makepyfile("def test_good(): pass\ndef test_bad(): assert 1 == 2")
    result = pytester.runpytest_subprocess("--unhang")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*jobs of this test are not watched: no temporary folder can be written*"])


def test_a_wrong_setting_is_said_once(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nunhang_abort_after = -1\n")
    pytester.makepyfile("def test_good(): pass")
    result = pytester.runpytest_subprocess("--unhang")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unhang_abort_after = '-1' is not a positive number of seconds*"])
