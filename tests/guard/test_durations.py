from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from unhang.inside.guards.words import seconds_of


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("30 s", 30.0),
        ("10m", 600.0),
        ("10min", 600.0),
        ("1.5h", 5400.0),
        (" 2 h ", 7200.0),
        (timedelta(minutes=3), 180.0),
    ],
)
def test_lengths_of_time(value: Any, seconds: float) -> None:
    assert seconds_of(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        "0s",
        "",
        "ten minutes",
        "10 d",
        "1e3",
        "-5m",
        "٣m",
        float("nan"),
        float("inf"),
        1e12,
        timedelta(0),
        None,
        True,
    ],
)
def test_what_is_no_length_of_time_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="length of time"):
        seconds_of(value)
