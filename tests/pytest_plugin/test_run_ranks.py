"""The fixture `run_ranks`, in a pytest of its own as users have it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.slowness import slowness

pytest_plugins = ["pytester"]

SUITE = """
import os, subprocess, sys, time
import pytest
import torch, torch.distributed as dist
from unhang.pytest_plugin import RanksFailed

def total(factor):
    print("printed by a rank")
    t = torch.ones(1) * factor * dist.get_rank()
    dist.all_reduce(t)
    return t.item()

def diverges():
    if dist.get_rank() == 1:
        dist.barrier()
    dist.all_reduce(torch.ones(2))

def raises():
    if dist.get_rank() == 1:
        raise ValueError("corrupt batch")
    dist.all_reduce(torch.ones(2))

def own_group():
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
    return os.environ["GREETING"], os.environ["WORLD_SIZE"]

def without_torch(seconds):
    time.sleep(seconds)

def leaves_early():
    raise SystemExit(0)

def gives_a_lambda():
    return lambda: 1

def test_healthy(run_ranks):
    assert run_ranks(total, 2, 3) == [3.0] * 2

def test_hang(run_ranks):
    run_ranks(diverges, 2)

def test_raises(run_ranks):
    run_ranks(raises, 2)

def test_raise_is_expected(run_ranks):
    with pytest.raises(RanksFailed, match="rank 1 raised ValueError: corrupt batch") as caught:
        run_ranks(raises, 2)
    assert caught.value.rank == 1
    assert "corrupt batch" in caught.value.traceback

def test_own_group(run_ranks):
    assert run_ranks(own_group, 2, backend=None, env={"GREETING": "hello"}) == [("hello", "2")] * 2

def test_too_long(run_ranks):
    began = time.monotonic()
    with pytest.raises(RanksFailed, match=r"not over after 0\\.5 s"):
        run_ranks(without_torch, 2, 600, backend=None, timeout=0.5)
    assert time.monotonic() - began < 60

def test_no_result(run_ranks):
    with pytest.raises(RanksFailed, match="rank 0 raised SystemExit: 0"):
        run_ranks(leaves_early, 1, backend=None)

def test_result_without_pickle(run_ranks):
    with pytest.raises(RanksFailed, match="what it returned cannot be handed back"):
        run_ranks(gives_a_lambda, 1, backend=None)

def test_lambda(run_ranks):
    with pytest.raises(TypeError, match="cannot use a lambda: each rank is a process that imports it"):
        run_ranks(lambda: 1, 2)

def test_nested(run_ranks):
    def inner(): ...
    with pytest.raises(TypeError, match="test_nested.inner, which is made inside a function"):
        run_ranks(inner, 2)

def test_argument_without_pickle(run_ranks):
    with pytest.raises(TypeError, match="cannot hand the arguments to the ranks"):
        run_ranks(total, 2, lambda: 1)

@pytest.mark.parametrize("ranks", [0, -1, 1.5, True, "2"])
def test_number_of_ranks(run_ranks, ranks):
    with pytest.raises(TypeError, match="the number of ranks is a whole number"):
        run_ranks(total, ranks, 1)
"""
_EXPECTED_TO_FAIL = {"test_hang", "test_raises"}


def line_of(text: str, program: str) -> int:
    """Of the file that pytester makes of it."""
    return 1 + [line.strip() for line in program.strip().splitlines()].index(text)


def failures(junit: Path) -> dict[str, str]:
    """Test -> text of its failure, "" where it passed."""
    cases = ElementTree.parse(junit).iter("testcase")
    return {
        case.get("name", ""): "\n".join((part.get("message") or "") + (part.text or "") for part in case if part.tag != "system-out")
        for case in cases
    }  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("-n", "2"), id="xdist", marks=pytest.mark.whole),
        pytest.param(("--import-mode=importlib",), id="importlib"),
    ],
)
def test_each_end_of_a_job_is_told(pytester: pytest.Pytester, how: tuple[str, ...]) -> None:
    pytester.makepyfile(test_jobs=SUITE)
    selected = () if how[0] == "-n" else ("-k", "healthy or lambda")
    pytester.runpytest_subprocess(
        *how, *selected, "--junitxml=all.xml", "--unhang-reports=kept", timeout=170 * slowness()
    )
    found = failures(pytester.path / "all.xml")
    if how[0] != "-n":
        assert found == dict.fromkeys(("test_healthy", "test_lambda"), "")
        return
    assert {name for name, text in found.items() if text} == _EXPECTED_TO_FAIL, found
    hang, raised = found["test_hang"], found["test_raises"]
    assert "rank 1" in hang.splitlines()[0]
    assert f"test_jobs.py:{line_of('dist.barrier()', SUITE)}" in hang.splitlines()[0]  # the line that hangs
    assert "code-divergence" in hang
    assert "dist.get_rank() == 1" in hang  # the cause
    assert "what to do: " in hang
    assert "pytest_plugin/launcher" not in hang  # our own frames are not the user's
    assert "raises in 2 ranks: rank 1 raised ValueError: corrupt batch" in raised.splitlines()[0]
    assert raised.index('raise ValueError("corrupt batch")') < raised.index("user-exception")
    reports = sorted((pytester.path / "kept").iterdir())
    assert [r.name.rpartition("-")[0] for r in reports if r.name.startswith(("test_healthy", "test_hang-"))] == [
        "test_hang"
    ]
    assert all((r / "report.html").exists() for r in reports if r.name.startswith("test_hang"))


def test_plugin_costs_nothing_where_it_is_not_used(pytester: pytest.Pytester) -> None:
    """pytest loads it in every suite of the environment."""
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded():
            ours = {name for name in sys.modules if name.partition(".")[0] == "unhang"}
            assert ours == {"unhang", "unhang.pytest_plugin", "unhang.pytest_plugin.hooks"}
            assert not {"numpy", "torch", "msgspec"} & set(sys.modules)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:xdist")
    result.assert_outcomes(passed=1)
    assert "--unhang " in "\n".join(pytester.runpytest_subprocess("--help").outlines)


def test_setting_that_is_no_number(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nunhang_timeout = soon\n")
    pytester.makepyfile("def test_one(run_ranks): pass")
    result = pytester.runpytest_subprocess()
    result.stdout.fnmatch_lines(["*unhang_timeout = 'soon' is not a positive number of seconds*"])


def test_killed_pytest_leaves_no_rank(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_long="""
        import os, time
        from pathlib import Path

        def waits(folder):
            Path(folder, f"pid-{os.getpid()}").touch()
            time.sleep(600)

        def test_one(run_ranks, request):
            run_ranks(waits, 2, str(request.config.rootpath), backend=None)
        """
    )
    process = subprocess.Popen([sys.executable, "-m", "pytest", "-q", str(pytester.path)], cwd=pytester.path)
    try:
        _until(lambda: len(list(pytester.path.glob("pid-*"))) == 2)
    finally:
        process.kill()
        process.wait()
    pids = [path.name.partition("-")[2] for path in pytester.path.glob("pid-*")]
    assert len(pids) == 2
    _until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def _until(holds: object, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s * slowness()
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)
