"""Stalls, slow steps and waits for data, by what a job printed."""

from __future__ import annotations

import pytest

from tests.rules.notation import log_case
from unhang.analyze.lines.log_progress import slower, stall, starved
from unhang.analyze.situation import Situation
from unhang.rules.registry import judge

# 3,708 steps in 53 minutes are 0.86 s each; the rate is a moving average after one long wait.
_SMOOTHED = "  88%|########8 | 3708/4212 [53:12<112:10:28, 800.85s/it]\n"


def _situation(text: str) -> Situation:
    return Situation(log_case(text)())


def test_a_smoothed_rate_is_one_wait_and_never_the_time_of_a_step() -> None:
    s = _situation(_SMOOTHED)
    found = stall(s.events)
    assert found is not None
    assert found.is_reckoned
    assert found.wait_s == pytest.approx(2669, abs=1)
    assert found.usual_s == pytest.approx(0.14, abs=0.01)
    assert slower(s.events) is None
    diagnosis = judge(s)
    assert diagnosis.findings == ()
    assert any("moving average" in note and "2670 s" in note for note in diagnosis.notes), diagnosis.notes


def test_a_wait_between_two_drawings_is_measured() -> None:
    bars = [f"{i}%|# | {i * 10}/1000 [00:{i * 4:02}<30:00, 2.50it/s]\n" for i in range(1, 11)]
    bars.append("11%|# | 110/1000 [15:44<30:00, 28.1s/it]\n")
    found = stall(_situation("".join(bars)).events)
    assert found is not None
    assert not found.is_reckoned
    assert found.wait_s == pytest.approx(900, abs=5)
    assert found.usual_s == pytest.approx(0.4, abs=0.01)


@pytest.mark.parametrize(
    "text",
    [
        "  3%|3         | 27/984 [18:00<10:38:00, 40.17s/it]\n",  # slow steps, all of them
        " 10%|#         | 5/50 [44:10<6:37:30, 530.00s/it]\n",  # too few to tell
        "100%|##########| 500/500 [02:00<00:00, 4.17it/s]\n",
        "".join(f"{i}%|# | {i}/100 [0{i}:30<30:00, 60.0s/it]\n" for i in range(9)),
        " 50%|#####     | 50/100 [999999:00:00<30:00, 1e999s/it]\n",
    ],
)
def test_no_stall(text: str) -> None:
    assert stall(_situation(text).events) is None


def test_a_bar_that_begins_again_is_another_one() -> None:
    epoch = [f"{i}%|# | {i * 10}/1000 [00:{i * 4:02}<30:00, 2.50it/s]\n" for i in range(1, 11)]
    assert stall(_situation("".join(epoch * 3)).events) is None


def test_more_time_for_data_than_for_the_step_is_another_meter() -> None:
    lines = [f"Epoch: [0][{i}/50]\tTime 1.500 (1.500)\tData 2.100 (2.100)\n" for i in range(9)]
    assert starved(_situation("".join(lines)).events) is None
