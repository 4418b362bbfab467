"""Jobs of two ranks: a condition on the rank tells who is odd, else both lines are shown; who ended before the other is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import warm

from .faults import Case
from .harness import Result, check_fault, check_files, run_job

NO_CONDITION = ("# no_condition waits here", "# main goes on")
MAIN_FIRST = ("# main_first gathers here", "# main_first waits here")


def of_two(fault: str, outcome: str = "hang", **more: object) -> Case:
    """A job of two ranks with this fault."""
    given = {"cause": "code-divergence", "culprits": (0,), "location": "ignored", **more}
    return Case(fault, "programs/two_ranks.py", (fault,), outcome=outcome, ranks=2, **given)  # type: ignore[arg-type]


def line_of(case: Case, text: str) -> int:
    (line,) = [i for i, found in enumerate(case.path.read_text().splitlines(), 1) if found.endswith(text)]
    return line


def judged(case: Case, tmp_path: Path) -> Result:
    # Those under torchrun are about the end of an interpreter.
    result = run_job(case, tmp_path, start=warm.cold if case.launcher == "torchrun" else warm.popen)
    check_fault(case, result)
    check_files(result)
    return result


@pytest.mark.parametrize("fault", ["accelerate", "own_property", "variable", "early_return", "environment"])
def test_the_side_under_a_rank_condition_is_named(fault: str, tmp_path: Path) -> None:
    case = of_two(fault)
    first = judged(case, tmp_path).report["findings"][0]
    line = line_of(case, f"# {fault}")
    assert first["location"]["line"] == line
    assert first["title"].startswith(f"rank 0 called barrier alone: two_ranks.py:{line} runs only ")
    assert "depends on the rank" in first["because"]
    assert first["condition"]["by_rank"]
    told = first["fixes"][0]
    assert told.get("patch", "").startswith("--- ") or "take the call out of `" in told["advice"]


@pytest.mark.parametrize(("fault", "texts"), [("no_condition", NO_CONDITION), ("main_first", MAIN_FIRST)])
def test_without_a_condition_that_tells_both_lines_are_shown(
    fault: str, texts: tuple[str, str], tmp_path: Path
) -> None:
    case = of_two(fault, culprits=(0, 1))
    result = judged(case, tmp_path)
    first = result.report["findings"][0]
    assert first["victim_ranks"] == []
    # A condition on the data is shown, though it does not tell who is wrong; all can agree on it.
    assert [fix["title"].partition(":")[0] for fix in first["fixes"]] == (
        [f"All ranks decide together whether line {line_of(case, texts[0])} runs"] if fault == "no_condition" else []
    )
    assert (first["location"] and first["location"]["line"]) == (
        line_of(case, texts[0]) if fault == "no_condition" else None
    )
    for rank, text in enumerate(texts):
        assert f"rank {rank} was in " in first["title"]
        assert f"(two_ranks.py:{line_of(case, text)})" in first["title"]
    assert ("WHAT TO DO" in (result.report_dir / "report.txt").read_text()) == bool(first["fixes"])


@pytest.mark.parametrize(
    ("fault", "culprit"), [("ended", 0), pytest.param("ended_in_loop", 1, marks=pytest.mark.whole)]
)
def test_a_call_that_only_one_made_before_the_other_ended(fault: str, culprit: int, tmp_path: Path) -> None:
    case = of_two(fault, outcome="crash", culprits=(culprit,), launcher="torchrun")
    first = judged(case, tmp_path).report["findings"][0]
    assert first["location"]["line"] == line_of(case, f"# {fault}")


@pytest.mark.whole
def test_who_ended_is_named_where_nothing_tells_more(tmp_path: Path) -> None:
    case = of_two("ended_for_no_reason", "crash", cause="rank-exited-early", culprits=(1,), launcher="torchrun")
    first = judged(case, tmp_path).report["findings"][0]
    assert first["title"].startswith("rank 1 came to the end of its program")
    assert first["confidence"] < 0.7
    assert f"two_ranks.py:{line_of(case, '# ended_for_no_reason')}" in first["because"]
