"""The thresholds learn from the job; the clock is passed in."""

from __future__ import annotations

import pytest

from unhang.analyze.situation import Situation
from unhang.testing import make_case
from unhang.watch import suspicion
from unhang.watch.suspicion import Patience


def test_a_regular_long_step_costs_a_few_looks_a_minute() -> None:
    patience, looks, now = Patience(), 0, 0.0
    for _ in range(300):  # ten minutes of steps of 2 s
        last = None
        for tenth in range(20):
            now += 0.1
            if patience.is_time_to_look(tenth / 10, last, now):
                looks, last = looks + 1, tenth / 10
                patience.looked()
        patience.quiet_ended(2.0, was_looked_at=last is not None)
    assert looks <= 4 + 600 / 30


def test_without_looks_left_a_quiet_must_outlast_the_usual_ones() -> None:
    patience = Patience(looks_left=0.0)
    patience.quiet_ended(2.0, was_looked_at=True)
    assert not patience.is_time_to_look(2.9, None, 0.0)
    assert patience.is_time_to_look(3.0, None, 0.0)


def test_the_stall_limit_grows_with_what_the_job_needs() -> None:
    patience = Patience(has_stepped=True)
    patience.quiet_ended(1.0, was_looked_at=False)
    assert patience.stall_after_s() == 15.0
    patience.quiet_ended(40.0, was_looked_at=True)
    assert patience.stall_after_s() == 120.0


def test_the_users_own_limit_is_kept() -> None:
    patience = Patience(asked_s=2.0)
    patience.quiet_ended(40.0, was_looked_at=True)
    assert patience.stall_after_s() == 2.0
    assert patience.is_time_to_look(2.0, 1.0, 9.0)


def test_what_comes_before_the_first_step_may_take_longer() -> None:
    patience = Patience()
    patience.quiet_ended(1.0, was_looked_at=False)
    assert patience.stall_after_s() == 60.0


def test_a_quiet_is_looked_at_again_at_the_limit_and_ever_more_rarely() -> None:
    patience = Patience(has_stepped=True)
    assert patience.is_time_to_look(1.0, None, 9.0)
    assert not patience.is_time_to_look(2.9, 1.0, 9.0)
    assert patience.is_time_to_look(3.0, 1.0, 9.0)
    assert patience.is_time_to_look(15.0, 9.0, 9.0)
    assert not patience.is_time_to_look(20.0, 15.0, 9.0)


def test_a_quiet_before_the_first_step_may_come_again_and_is_no_habit() -> None:
    patience = Patience()
    patience.quiet_ended(30.0, was_looked_at=False)
    assert patience.stall_after_s() == 90.0
    patience.has_stepped = True
    assert patience.stall_after_s() == 30.0
    patience.quiet_ended(12.0, was_looked_at=False)
    assert patience.stall_after_s() == 36.0


def test_a_rank_that_stops_beside_those_that_stand_is_looked_at_after_a_second() -> None:
    """Not at three times the age of the last look: that is when a circle may have closed."""
    patience = Patience(has_stepped=True)
    assert patience.is_time_to_look(3.0, 1.0, 9.0)
    patience.moved_beside(9.5)
    assert not patience.is_time_to_look(4.0, 3.0, 10.0)
    assert patience.is_time_to_look(4.6, 3.0, 10.6)
    patience.looked()
    assert not patience.is_time_to_look(5.0, 4.6, 11.0)


def test_one_that_goes_on_beside_them_costs_no_more_looks_than_there_are() -> None:
    patience, looks = Patience(has_stepped=True), 0
    for second in range(600):
        patience.moved_beside(second)
        if patience.is_time_to_look(5.0 + second, 5.0 + second, second + 1.0):
            looks += 1
            patience.looked()
    assert looks <= 4 + 600 / 30


@pytest.mark.parametrize(
    ("unheard", "longest_quiet_s", "has_stepped", "expected"),
    [
        ((1,), 0.5, True, 5.0),
        ((1,), 4.0, True, 12.0),
        ((1,), 40.0, True, 120.0),
        ((1,), 0.5, False, 60.0),
        ((0,), 0.5, True, 15.0),
        ((), 0.5, True, 15.0),
    ],
)
def test_who_waits_for_a_node_that_is_gone_is_told_sooner(
    unheard: tuple[int, ...], longest_quiet_s: float, has_stepped: bool, expected: float
) -> None:
    calls = {0: ["all_reduce[8]@main:3", "barrier@main:4 !"], 1: ["all_reduce[8]@main:3"]}
    situation = Situation(make_case(calls, world=2))  # type: ignore[arg-type]
    assert situation.waits.roots == (1,)
    patience = Patience(longest_quiet_s=longest_quiet_s, has_stepped=has_stepped)
    assert suspicion.limit_s(patience, situation, unheard) == expected


def test_looks_before_the_first_step_are_not_counted_after_it() -> None:
    patience = Patience()
    for now in (5.0, 8.0, 12.0, 15.0):
        assert patience.is_time_to_look(1.2, None, now)
        patience.looked()
    patience.quiet_ended(7.2, was_looked_at=True)
    assert not patience.is_time_to_look(1.2, None, 16.0)
    patience.begin_steps()
    assert patience.is_time_to_look(1.2, None, 17.0)
