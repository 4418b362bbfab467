"""Before and after: what is verified, what is not, what cannot be judged; and the reports of it."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from unhang.model import Verdict
from unhang.verify import Run
from unhang.verify.before_after import Verified, checks_junit, compare_sides, verified_json, verified_text
from unhang.verify.expectations import default_expectations, parse_expectations

from .made_runs import clean_run, hung_run, stopped_run, trace_of

TRACE = trace_of([0.1] * 39)


def compared(before: list[Run], after: list[Run]) -> Verified:
    return compare_sides(before, after, default_expectations())


def verdicts(verified: Verified) -> dict[str, str]:
    return {check.name: check.verdict.value for check in verified.checks}


def test_verified() -> None:
    verified = compared([hung_run(trace=TRACE)], [clean_run("fine\n", trace=TRACE)])
    assert verified.exit_code == 0
    assert set(verdicts(verified).values()) == {"pass"}
    text = verified_text(verified)
    assert text.startswith("VERIFIED: code-divergence before, nothing after\n")
    rows = [line.split("  ") for line in text.splitlines()]
    cells = {row[0]: [cell.strip() for cell in row[1:] if cell] for row in rows if len(row) > 2}
    assert cells["cause"] == ["code-divergence", "none"]
    assert cells["where"] == ["rank 0 at train.py:11 in main", "-"]
    assert cells["outcome"] == ["hang", "clean"]
    assert cells["exit code"] == ["124", "0"]
    assert cells["steps reached"] == ["20", "40"]
    assert cells["step time, median"] == ["100 ms", "100 ms"]


@pytest.mark.parametrize(
    ("before", "after", "code", "check", "part"),
    [
        ([clean_run()], [clean_run()], 1, "before_fails", "no failure in"),
        ([hung_run()], [hung_run()], 1, "cause_is_gone", "code-divergence is still there"),
        ([hung_run()], [clean_run(), hung_run()], 1, "cause_is_gone", "run 2: code-divergence"),
        ([hung_run()], [clean_run(steps=10)], 1, "comes_as_far", "ended at step 10"),
        ([hung_run()], [clean_run(steps=0)], 1, "comes_as_far", "ended at step 0"),
        ([hung_run()], [clean_run(steps=None)], 3, "comes_as_far", "not known of all runs"),
        ([hung_run(steps=None)], [clean_run()], 0, "comes_as_far", "not known of all runs"),
        ([hung_run(steps=0)], [clean_run(steps=1)], 0, "comes_as_far", "failed at step 0"),
        ([hung_run(steps=0)], [clean_run(steps=0)], 0, "comes_as_far", "cannot be counted"),
        (
            [hung_run()],
            [clean_run(), clean_run(world_size=1)],
            1,
            "comes_as_far",
            "the run after had 1 rank, the run before 3",
        ),
        ([hung_run()], [clean_run(world_size=None)], 3, "comes_as_far", "nothing shows that the run after had ranks"),
        ([hung_run()], [stopped_run()], 1, "no_finding", "no established cause"),
        ([stopped_run()], [clean_run()], 3, "before_fails", "no cause is established"),
        ([clean_run(), hung_run()], [clean_run()], 0, "before_fails", "hang: code-divergence, rank 0"),
    ],
)
def test_not_verified(before: list[Run], after: list[Run], code: int, check: str, part: str) -> None:
    verified = compared(before, after)
    reasons = {c.name: c.reason for c in verified.checks}
    assert (verified.exit_code, part in reasons[check]) == (code, True), reasons
    assert ("NOT" in verified_text(verified).splitlines()[0]) is (code != 0)


def test_another_failure_in_its_place_is_said_first() -> None:
    text = verified_text(compared([hung_run()], [stopped_run()]))
    assert text.startswith("NOT VERIFIED: code-divergence is gone, but the job fails in another way: "), text
    assert "no established cause" in text.splitlines()[0]


def test_a_failure_that_comes_and_goes_wants_more_runs() -> None:
    before = [hung_run(), clean_run(), clean_run(), hung_run()]
    few, many = compared(before, [clean_run()] * 2), compared(before, [clean_run()] * 40)
    assert few.luck is not None
    assert few.luck > 0.5
    assert "repeat more often" in verified_text(few)
    assert many.luck is not None
    assert many.luck < 0.05
    assert "repeat more often" not in verified_text(many)
    assert "2 of 4 (95 %: 15 to 85 %)" in verified_text(few)


def test_expectations_alone() -> None:
    wanted = parse_expectations({"steps": {"min": 40}, "epochs": {"min": 1}})
    verified = compare_sides([], [clean_run()], wanted)
    assert verified.exit_code == 0
    assert verdicts(verified) == {"exit_code": "pass", "no_finding": "pass", "steps": "pass", "epochs": "skipped"}
    assert verified_text(verified).startswith("AS EXPECTED\n")
    assert "before" not in verified_text(verified)


def test_what_is_skipped_fails_only_where_it_is_required() -> None:
    wanted = parse_expectations({"epochs": {"min": 1, "required": True}})
    verified = compare_sides([], [clean_run()], wanted)
    assert verified.exit_code == 1
    assert verified_text(verified).startswith("NOT VERIFIED: epochs: no line of the log")


def test_an_unknown_exit_code_is_not_judged() -> None:
    run = clean_run("fine\n")
    unknown = replace(run, case=replace(run.case, job=replace(run.case.job, exit_code=None)))
    verified = compare_sides([], [unknown], default_expectations())
    assert verdicts(verified)["exit_code"] == "skipped"
    assert verified.exit_code == 3


def test_json_and_junit() -> None:
    wanted = parse_expectations({"steps": {"min": 99}, "epochs": {"min": 1}})
    verified = compare_sides([hung_run(trace=TRACE)], [clean_run(trace=TRACE)], wanted)
    told = json.loads(verified_json(verified))
    assert told["schema"] == "unhang.verify/1"
    assert told["exit_code"] == 1
    assert told["before"]["runs"][0]["cause"] == "code-divergence"
    assert told["before"]["runs"][0]["culprit_ranks"] == [0]
    assert told["after"]["failed"] == {"count": 0, "total": 1, "low": 0.0, "high": pytest.approx(0.7935, abs=1e-3)}
    assert told["after"]["step_time_s"]["median"] == pytest.approx(0.1)
    assert {c["name"]: c["verdict"] for c in told["checks"]} == verdicts(verified)
    suite = ElementTree.fromstring(checks_junit(verified.checks))
    assert dict(suite.attrib) == {
        "name": "unhang verify",
        "tests": "7",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    by_name = {case.get("name"): [child.tag for child in case] for case in suite}
    assert by_name["steps"] == ["failure"]
    assert by_name["epochs"] == ["skipped"]
    assert by_name["before_fails"] == []
    assert sum(c.verdict is Verdict.FAIL for c in verified.checks) == 1
