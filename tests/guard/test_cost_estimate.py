"""What benchmarks/twins.py makes of step times that are made for it: it finds a cost where one is, and none where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CYCLES = 60


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import twins

    return twins


def steps_of(twins: Any, seed: int, cost: dict[int, float]) -> dict[str, Any]:
    """Steps of 20 ms on a machine where one in four is disturbed; `cost`: seconds more at these places of each cycle."""
    draw = np.random.default_rng(seed)
    count = (CYCLES + twins.WARM_UP) * twins.CYCLE
    disturbed = np.where(draw.random(count) < 0.25, draw.exponential(0.01, count), 0)
    step = 0.02 + disturbed + draw.normal(0, 2e-4, count)
    for place, more_s in cost.items():
        step[place :: twins.CYCLE] += more_s
    return {"step_s": step, "cpu_s": step, "call_s": np.full(count // twins.CALLS_EVERY, 1e-4)}


def test_equal_jobs_cost_the_same(twins: Any) -> None:
    found = twins._compared(steps_of(twins, 1, {}), steps_of(twins, 2, {}))
    low, high = found["ratio"]["interval"]
    assert low <= 1 <= high
    assert high - low < 0.01
    assert found["ratio"]["n"] == CYCLES * twins.CYCLE


@pytest.mark.parametrize("every", [1, 50, 100])
def test_a_cost_is_found_however_rare_its_place(twins: Any, every: int) -> None:
    per_step = 2e-4  # one percent
    cost = dict.fromkeys(range(0, twins.CYCLE, every), per_step * every)
    found = twins._compared(steps_of(twins, 3, {}), steps_of(twins, 4, cost))
    assert found["ratio"]["median"] == pytest.approx(1.01, abs=0.003)
    assert found["ratio"]["interval"][0] > 1.004
    assert found["extra_cpu_us"]["median"] == pytest.approx(200, abs=60)


def test_too_little_is_no_figure(twins: Any) -> None:
    short = {key: values[:250] for key, values in steps_of(twins, 5, {}).items()}
    assert twins._compared(short, short) == {}
