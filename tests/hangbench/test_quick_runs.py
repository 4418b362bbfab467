"""Some runs of the hang benchmark, for real."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.hangbench.cases import all_runs
from benchmarks.hangbench.jobs import run_once
from benchmarks.hangbench.run import QUICK
from benchmarks.hangbench.score import HIT

RUNS = {run.name: run for run in all_runs()}


@pytest.mark.parametrize("name", QUICK)
def test_the_verdict_is_right(name: str, tmp_path: Path) -> None:
    row = run_once(RUNS[name], tmp_path / "report")
    assert row["score"]["result"] == HIT, row
