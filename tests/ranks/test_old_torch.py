"""A torch that keeps no record of gloo's calls: a wrong call is proven by the calls in which the threads stand, and nobody is accused without them."""

from __future__ import annotations

from pathlib import Path

from .faults import Case
from .harness import HUNG_JOB_ENDED, check_fault, check_healthy, run_job


def case_of(what: str, **more: object) -> Case:
    given = {"cause": "code-divergence", "culprits": (0,), "location": "required", **more}
    return Case(what, "programs/no_calls_of_gloo.py", (what,), outcome="hang", ranks=3, **given)  # type: ignore[arg-type]


def test_a_call_of_one_rank_alone_is_proven(tmp_path: Path) -> None:
    case = case_of("alone", kind="proven")
    result = run_job(case, tmp_path)
    check_fault(case, result)
    assert "broadcast(2 Float)" in result.report["findings"][0]["because"]
    assert result.report["findings"][0]["collective"]["seq"] == 4


def test_a_healthy_job_is_left_alone(tmp_path: Path) -> None:
    check_healthy(run_job(case_of("well"), tmp_path))


def test_where_the_count_says_nothing_no_call_is_told(tmp_path: Path) -> None:
    """Transfers move the count of a group, and not alike on its ranks: rank 2 made none. The job is not ended as a proven hang."""
    result = run_job(case_of("transfers"), tmp_path)
    assert result.exit_code == HUNG_JOB_ENDED
    assert result.report["hang"]["kind"] == "suspected"
    assert not any("#" in finding["title"] for finding in result.report["findings"])
