"""By which operation, from which root and of which type the ranks reduced: what no backend compares, in real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .faults import Case
from .harness import Result, check_healthy, run_job


def _job(how: str, **more: object) -> Case:
    given: dict[str, object] = {"ranks": 3, "outcome": "clean", "abort_after_s": None, **more}
    return Case("unlike_values", "programs/unlike_values.py", (how,), **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A job that ends well and meant different things twice."""
    return run_job(_job("wrong"), tmp_path_factory.mktemp("wrong"))


def test_operation_and_type_are_told_of_a_job_that_ended_well(wrong: Result) -> None:
    report = wrong.report
    told = {f["title"].partition(" in ")[0]: f for f in report["findings"]}
    assert {f["cause"] for f in report["findings"]} == {"silent-desync"}, wrong
    assert set(told) == {"rank 1 reduced by MAX", "rank 2 gave elements of type Int"}, wrong
    found = told["rank 1 reduced by MAX"]
    assert "where ranks 0, 2 reduced by SUM" in found["title"], wrong
    assert found["culprit_ranks"] == [1], wrong
    assert found["location"]["function"] == "metric", wrong


def test_what_may_differ_draws_nothing(tmp_path: Path) -> None:
    check_healthy(run_job(_job("healthy"), tmp_path))


def _hung(how: str, tmp_path: Path) -> Result:
    result = run_job(_job(how, outcome="hang", abort_after_s=1.5), tmp_path)
    assert result.report["outcome"] == "hang", result
    return result


def test_beside_a_hang_to_which_it_need_not_have_led_it_is_a_note(tmp_path: Path) -> None:
    result = _hung("hang", tmp_path)
    assert "unlike-values" not in [f["rule"] for f in result.report["findings"]], result
    assert any("rank 1 reduced by MAX" in str(note) for note in result.report["notes"]), result


def test_where_the_same_rank_parted_there_it_is_named_beside_the_hang(tmp_path: Path) -> None:
    result = _hung("parted", tmp_path)
    found = [f for f in result.report["findings"] if f["rule"] == "unlike-values"]
    assert [(f["cause"], f["culprit_ranks"]) for f in found] == [("code-divergence", [1])], result
