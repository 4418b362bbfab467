"""What `unhang run` tells of a job that ends well: its slow steps while they happen, its pace, and how it was set up."""

from __future__ import annotations

from pathlib import Path

from .faults import Case
from .harness import check_healthy, run_job


def test_slow_steps_are_told_while_they_happen_and_stay_in_the_report(tmp_path: Path) -> None:
    case = Case("slow_steps", "programs/slow_steps.py", ("all",), ranks=2, stall_after_s=20, abort_after_s=None)
    result = run_job(case, tmp_path, limit_s=90)
    check_healthy(result)
    assert "x the usual " in result.stderr, result
    assert "steps take " in result.stderr, result
    report = result.report
    slow = {found["step"]: found for found in report["course"]["slow_steps"]}  # a busy machine may add others
    assert slow[61]["phases"]["1"].startswith("data"), result
    assert slow[61]["took_s"] >= 2.0, result  # of 2.5: steps that ended since the last look count as usual ones
    assert report["course"]["slower"] is not None, result
    assert {entry["count"] for entry in report["stop"]["steps"]} == {120}, result
    assert {
        "what": "Variable",
        "value": "NCCL_NTHREADS=256, set by the launcher or the program",
    } in report["set_up"]
