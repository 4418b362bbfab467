"""Some runs of the hang benchmark, for real."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.hangbench import jobs
from benchmarks.hangbench.cases import all_runs
from benchmarks.hangbench.jobs import run_once
from benchmarks.hangbench.run import QUICK
from benchmarks.hangbench.score import HIT

from tests import warm
from tests.slowness import slowness

# Of each story one, of each outcome one; the others of the quick table run with `-m whole`.
IN_EVERY_RUN = ("reid/healthy-1", "reid/own-nan_loss", "async_rl/rank_raises-1", "nanochat/wrong_shape-1")
RUNS = {run.name: run for run in all_runs()}


def run_warm(command: Sequence[str], cwd: Path, limit_s: float) -> jobs.Done:
    """As the benchmark does, from the warm process."""
    began = time.monotonic()
    with (cwd / "output.txt").open("w+", errors="replace") as output:
        job = warm.start(command, cwd, output.fileno())
        try:
            job.communicate(limit_s * slowness())
        finally:
            warm.end(job)
        output.seek(0)
        return jobs.Done(job.returncode, output.read(), time.monotonic() - began)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.whole] * (name not in IN_EVERY_RUN)) for name in QUICK]
)
def test_the_verdict_is_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run_limited", run_warm)
    row = run_once(RUNS[name], tmp_path / "report")
    assert row["score"]["result"] == HIT, row
