"""What is told of the program while it runs, and in the report: real jobs that do wrong without an error, and the same ones put right."""

from __future__ import annotations

from pathlib import Path

from .faults import Case
from .harness import check_healthy, run_job


def _job(*args: str) -> Case:
    return Case("program_facts", "programs/program_facts.py", args, ranks=2, outcome="clean", abort_after_s=None)


def test_a_wrong_sum_and_limits_in_the_wrong_order_are_told_while_the_job_runs(tmp_path: Path) -> None:
    result = run_job(_job("wrong"), tmp_path, limit_s=90)
    told = [line for line in result.stderr.splitlines() if line.startswith("unhang: ")]
    for text in (
        "all_reduce was given a tensor of elements that lie apart in memory",
        "all_gather writes the parts of all ranks into one tensor",
        "waits for 90 s, not less than the process group's 60 s",
        "leaves out 5 of 17 samples: 1 by shares of len // world, 4 by DataLoader(drop_last=True) of 2 ranks",
    ):
        assert any(text in line for line in told), result
    report = result.report
    assert [f["cause"] for f in report["findings"]] == ["silent-desync"] * 3, result
    assert "tensors whose elements lie in another order on another rank" in report["findings"][1]["title"], result
    assert report["findings"][0]["location"]["function"] == "count", result
    assert "WRONG  all_reduce was given" in result.stderr, result


def test_the_same_put_right_is_clean_and_draws_no_remark(tmp_path: Path) -> None:
    result = run_job(_job("healthy"), tmp_path, limit_s=90)
    check_healthy(result)
    assert result.report["notes"] == [], result
    assert "note:" not in result.stderr, result
