"""The scorer of the hang benchmark on answers that are made for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.hangbench.peers import causes_in, lines_in, ranks_in, score_text
from benchmarks.hangbench.score import (
    FALSE_ACCUSATION,
    HIT,
    UNDECIDED,
    WRONG_LINE,
    WRONG_OUTCOME,
    Said,
    Truth,
    said_in,
    score_fault,
    score_healthy,
    share,
    wilson,
)

TRUTH = Truth(("hang",), ("code-divergence",), frozenset({1}), frozenset({("train.py", 12), ("train.py", 14)}))
RIGHT = Said("hang", "code-divergence", frozenset({1}), ("train.py", 12))


def test_all_parts_right_is_a_hit() -> None:
    score = score_fault(TRUTH, RIGHT, 124)
    assert (score.result, score.outcome, score.cause, score.ranks, score.line) == (HIT, True, True, True, True)
    assert score_fault(TRUTH, replace(RIGHT, line=("train.py", 14)), 124).result == HIT


@pytest.mark.parametrize(
    ("said", "result"),
    [
        (replace(RIGHT, line=("train.py", 13)), WRONG_LINE),
        (replace(RIGHT, line=("model.py", 12)), WRONG_LINE),
        (replace(RIGHT, line=None), WRONG_LINE),
        (replace(RIGHT, outcome="crash"), WRONG_OUTCOME),
        (replace(RIGHT, cause="uneven-inputs"), FALSE_ACCUSATION),
        (replace(RIGHT, ranks=frozenset({2})), FALSE_ACCUSATION),
        (replace(RIGHT, ranks=frozenset({1, 2})), FALSE_ACCUSATION),
        (replace(RIGHT, ranks=frozenset()), UNDECIDED),
        (replace(RIGHT, cause="unknown"), UNDECIDED),
        (Said("hang"), UNDECIDED),
        (Said(), UNDECIDED),
    ],
)
def test_every_kind_of_miss(said: Said, result: str) -> None:
    assert score_fault(TRUTH, said, 124).result == result


@pytest.mark.parametrize(("code", "is_right"), [(124, True), (0, False), (1, False), (None, True)])
def test_what_is_said_must_fit_how_the_job_ended(code: int | None, is_right: bool) -> None:
    assert score_fault(TRUTH, RIGHT, code).outcome is is_right
    crash = replace(TRUTH, outcomes=("crash",))
    assert score_fault(crash, replace(RIGHT, outcome="crash"), code).outcome is (code in (1, None))


def test_the_rule_for_lines() -> None:
    for rule, without, wrong in (("required", False, False), ("optional", True, False), ("any", True, True)):
        truth = replace(TRUTH, line_rule=rule)
        assert score_fault(truth, replace(RIGHT, line=None), 124).line is without
        assert score_fault(truth, replace(RIGHT, line=("train.py", 99)), 124).line is wrong


def test_some_of_the_ranks_where_chance_decides() -> None:
    truth = replace(TRUTH, ranks=frozenset({0, 1}))
    assert score_fault(truth, RIGHT, 124).result == UNDECIDED
    assert score_fault(replace(truth, is_any_rank=True), RIGHT, 124).result == HIT
    assert not score_fault(replace(truth, is_any_rank=True), replace(RIGHT, ranks=frozenset()), 124).ranks


def test_a_healthy_run_is_accused_by_any_finding() -> None:
    assert score_healthy(Said("clean")).result == HIT
    assert score_healthy(replace(RIGHT, ranks=frozenset())).result == FALSE_ACCUSATION
    assert score_healthy(Said("clean", "straggler", frozenset({1}))).result == FALSE_ACCUSATION
    assert score_healthy(Said("unknown")).result == WRONG_OUTCOME
    assert score_healthy(Said()).result == WRONG_OUTCOME


def test_the_first_finding_of_a_report_counts() -> None:
    first = {"cause": "rank-frozen", "culprit_ranks": [3], "location": {"file": "/a/train.py", "line": 7}, "rule": "r"}
    said = said_in({"outcome": "hang", "findings": [first, {**first, "culprit_ranks": [1]}]})
    assert (said.cause, said.ranks, said.line) == ("rank-frozen", frozenset({3}), ("train.py", 7))
    assert said_in({"outcome": "clean", "findings": []}) == Said("clean")
    assert said_in({"findings": [{**first, "location": None}]}).line is None


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(10, 10, 0.7225, 1.0), (0, 10, 0.0, 0.2775), (81, 263, 0.2553, 0.3662), (120, 120, 0.9690, 1.0)],
)
def test_intervals_against_known_values(hits: int, of: int, low: float, high: float) -> None:
    assert wilson(hits, of) == pytest.approx((low, high), abs=5e-5)


def test_shares_are_written_with_their_interval() -> None:
    assert share(81, 263) == "81 of 263, 30.8 % (25.5 to 36.6)"
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_peer_is_read_generously() -> None:
    text = 'File "/x/train.py", line 14, in f\nDetected mismatch between collectives on ranks. Rank 0 is running collective: A, but Rank 1 is running collective: B'
    assert score_text(TRUTH, text).result == HIT
    assert score_text(TRUTH, text.replace("Rank 1", "Rank 3")).result == FALSE_ACCUSATION
    assert score_text(TRUTH, "Timed out waiting 10000ms for recv operation").result == UNDECIDED
    assert score_text(TRUTH, "").result == UNDECIDED


def test_what_a_peer_names() -> None:
    assert ranks_in("[Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 8000 ms") == {2, 3}
    assert "uneven-inputs" in causes_in("Ranks 2 failed to pass monitoredBarrier")
    assert ranks_in("forkrun: rank 2 (pid 7) ended with exit code -9") == {2}
    assert causes_in("ended with exit code -9") == {"rank-crashed-earlier"}
    votes = "but Rank 1 is running\nbut Rank 1 is running\nbut Rank 0 is running"
    assert ranks_in(votes) == {1}
    assert lines_in("f at /a/b/train.py:85") == {("train.py", 85)}
