"""Lengths of time as people write them."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TEXT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|m|min|h|)\s*")

Duration = float | int | timedelta | str


def seconds_of(value: Duration) -> float:
    """Seconds of a number, a timedelta, or a text such as "90", "30 s", "10m", "1.5h".

    Raises:
        ValueError: it is no length of time, or not above zero.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is no length of time; write seconds, or 30s, 10m, 1.5h")
        seconds = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{value!r} is no length of time; write seconds, or 30s, 10m, 1.5h")
    else:
        seconds = float(value)
    if not 0 < seconds < 1e9:
        raise ValueError(f"{value!r} is no sensible length of time; it must be above zero")
    return seconds
