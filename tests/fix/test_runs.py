"""Real jobs: they hang, are mended by the diff of their own report, and run to the end."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests import warm
from tests.ranks.faults import HANGS, HERE
from tests.ranks.harness import check_fault, check_healthy, run_job
from tests.slowness import slowness

CASES = {case.name: case for case in HANGS}
WHOLE = pytest.mark.whole


@pytest.mark.parametrize(
    "name",
    [
        "conditional_collective",
        "uneven_batches",
        *(
            pytest.param(n, marks=WHOLE)
            for n in ("skipped_step", "p2p_recv_cycle", "loader_left_early", "resumed_elsewhere", "key_passed_over")
        ),
    ],
)
def test_a_mended_job_runs_to_its_end(name: str, tmp_path: Path) -> None:
    case, programs = CASES[name], tmp_path / "programs"
    shutil.copytree(HERE / "programs", programs, ignore=shutil.ignore_patterns("__pycache__"))
    case = replace(case, program=str(programs / case.path.name))
    (tmp_path / "broken").mkdir()
    broken = run_job(case, tmp_path / "broken")
    check_fault(case, broken)
    assert any(fix.get("patch", "").startswith("--- ") for fix in broken.report["findings"][0]["fixes"])
    done = warm.run([*warm.UNHANG, "fix", str(broken.report_dir), "--apply"], tmp_path, 50 * slowness())
    assert done.returncode == 0, done.stderr
    (tmp_path / "mended").mkdir()
    check_healthy(run_job(replace(case, outcome="clean", abort_after_s=60), tmp_path / "mended"))
