"""Offsets between clocks, from meetings of the ranks: the truth is always within the bounds."""

from __future__ import annotations

import random

import pytest

from unhang.check.machine import Bracket, EvenClock, bracket_offset


@pytest.mark.parametrize("ahead_s", [0.0, 2.5, -3600.0])
def test_the_truth_is_within_the_bounds(ahead_s: float) -> None:
    chance = random.Random(7)
    for _ in range(50):
        own, other, now = [], [], 1000.0
        for _ in range(3):
            comes = [now + chance.random() for _ in range(2)]
            leaves = [max(comes) + chance.random() * 0.2 for _ in range(2)]
            own.append(Bracket(comes[0], leaves[0]))
            other.append(Bracket(comes[1] + ahead_s, leaves[1] + ahead_s))
            now = max(leaves)
        found = bracket_offset(own, other)
        assert found is not None
        assert abs(found.offset_s - ahead_s) <= found.uncertainty_s + 1e-9
        assert found.uncertainty_s < 1.5


def test_clocks_that_are_set_meanwhile_contradict_each_other() -> None:
    own = [Bracket(0.0, 0.1), Bracket(1.0, 1.1)]
    assert bracket_offset(own, [Bracket(0.0, 0.1), Bracket(61.0, 61.1)]) is None
    assert bracket_offset([], []) is None


def test_a_clock_that_is_set_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    walls, steadies = iter([100.0, 100.2, 40.5]), iter([5.0, 5.2, 5.5])
    monkeypatch.setattr("unhang.check.machine.time.time", lambda: next(walls))
    monkeypatch.setattr("unhang.check.machine.time.monotonic", lambda: next(steadies))
    clock = EvenClock()
    assert clock.jump_s() == pytest.approx(0.0)
    assert clock.jump_s() == pytest.approx(-60.0)
