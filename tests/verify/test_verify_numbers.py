"""Shares, medians and ratios, against values known from elsewhere; and the trace of steps."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from unhang.verify.before_after import Share, chance_of_luck
from unhang.verify.step_times import Spread, StepTrace, ratio_of_medians, read_trace

from .made_runs import trace_of


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (1, 10, 0.0179, 0.4042), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson(count: int, total: int, low: float, high: float) -> None:
    assert Share(count, total).interval == pytest.approx((low, high), abs=1e-4)


def test_spread() -> None:
    spread = Spread.of([4.0, 1.0, 3.0, 2.0, 100.0])
    assert spread == Spread(3.0, 2.0, 4.0, 100.0, 5)
    assert Spread.of([]) is None


def test_the_interval_covers_one_in_about_95_of_100_equal_pairs() -> None:
    covered = 0
    for seed in range(60):
        drawn = random.Random(seed)
        steps = [[drawn.gauss(1.0, 0.05) for _ in range(40)] for _ in range(2)]
        ratio = ratio_of_medians([steps[0]], [steps[1]], seed)
        assert ratio is not None
        assert ratio.over == "steps"
        covered += not ratio.is_certain
    assert covered >= 50


def test_slower_runs_are_certain() -> None:
    drawn = random.Random(1)
    steps = [[drawn.gauss(1.0, 0.05) for _ in range(60)] for _ in range(4)]
    twice = ratio_of_medians(steps, [[2 * s for s in run] for run in steps])
    assert twice is not None
    assert twice.over == "runs"
    assert twice.value == pytest.approx(2.0)
    assert 1.8 < twice.low <= twice.high < 2.2
    assert twice.is_certain
    assert twice == ratio_of_medians(steps, [[2 * s for s in run] for run in steps])  # seeded


def test_ratio_without_steps() -> None:
    assert ratio_of_medians([], [[1.0]]) is None
    assert ratio_of_medians([[1.0]], [[]]) is None
    assert ratio_of_medians([[0.0]], [[1.0]]) is None


def test_chance_of_luck() -> None:
    before = Share(2, 4)
    assert chance_of_luck(before, Share(0, 10)) == pytest.approx((1 - before.interval[0]) ** 10)
    assert chance_of_luck(before, Share(1, 10)) is None
    assert chance_of_luck(Share(1, 1), Share(0, 10)) is None


def test_durations_are_those_of_the_slowest_rank() -> None:
    trace = trace_of([0.1, 0.2, 0.1], ranks=2)
    at_ns = trace.seen[1][-1][1]
    trace.see(0, 5, at_ns + 10**8)
    trace.see(1, 5, at_ns + 3 * 10**8)
    assert trace.durations() == pytest.approx({2: 0.1, 3: 0.2, 4: 0.1, 5: 0.3})


def test_steps_between_two_looks_share_the_time() -> None:
    trace = StepTrace()
    for steps, at_s in ((0, 0), (2, 1), (2, 1), (6, 3)):  # nothing before the first step, and nothing twice
        trace.see(0, steps, at_s * 10**9)
    assert trace.durations() == {3: 0.5, 4: 0.5, 5: 0.5, 6: 0.5}


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    trace = trace_of([0.1, 0.2])
    trace.cpu_share[0] = 0.9
    trace.write(tmp_path)
    assert read_trace(tmp_path) == trace


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "unhang.steps/1", "seen": 3, "cpu_share": {}}', "\x00"])
def test_a_broken_trace_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps.json").write_text(text)
    assert read_trace(tmp_path) is None
    other = json.dumps({"schema": "unhang.steps/2", "seen": {}, "cpu_share": {}})
    (tmp_path / "steps.json").write_text(other)
    assert read_trace(tmp_path) is None
