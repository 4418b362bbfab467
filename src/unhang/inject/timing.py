"""Faults of time: slow steps, and a clock that jumps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import points
from .armed import Armed
from .fault import RANK, STEP, Fault, Parameter

Delay = Callable[[float, int], float]
"""The delay of a step from the parameter `delay` and the number of slow steps so far."""


def _slow(how: str, delay_of: Delay) -> Any:
    def make(armed: Armed) -> None:
        slow_steps = 0

        def listen(_optimizer: object) -> None:
            nonlocal slow_steps
            if not armed.has_struck and armed.is_due:
                armed.strikes(f"is slow from now on: {how.format(armed.value('delay'))}")
            if armed.has_struck:
                time.sleep(delay_of(armed.value("delay"), slow_steps))
                slow_steps += 1

        points.steps.append(listen)

    return make


def _periodic(armed: Armed) -> None:
    period = int(armed.value("period"))
    _slow(f"{{:g}} s in every {period} steps", lambda delay, n: 0 if n % period else delay)(armed)


def _jump(armed: Armed) -> None:
    """What the program asks of time.time() and time.time_ns() is ahead from now on; the machine's clock stays."""

    def listen(_optimizer: object) -> None:
        if armed.is_due:
            by_s = float(armed.value("seconds"))
            armed.strikes(f"has a clock that jumps by {by_s:g} s")
            now, now_ns = time.time, time.time_ns
            time.time = lambda: now() + by_s
            time.time_ns = lambda: now_ns() + int(by_s * 1e9)

    points.steps.append(listen)


_FAMILY = "time"
_STEPS = "optimizer step"
_DELAY = Parameter("delay", "seconds by which a step is slower", 0.3, 0.001, 3600, is_whole=False)
_GROWTH = Parameter(
    "delay", "seconds by which each step is slower than the one before", 0.05, 0.001, 3600, is_whole=False
)
_PERIOD = Parameter("period", "every how many steps", 3, 2, 10**6)
_SECONDS = Parameter("seconds", "how far the clock jumps", 3600, -(10**9), 10**9, is_whole=False)
FAULTS = (
    Fault("straggler", _FAMILY, "every step is slow by the same time", (RANK, STEP, _DELAY), ("straggler",), "straggler",
          False, _STEPS, _slow("{:g} s in every step", lambda delay, _n: delay)),
    Fault("straggler_growing", _FAMILY, "every step is slower than the one before", (RANK, STEP, _GROWTH),
          ("straggler",), "straggler", False, _STEPS, _slow("{:g} s more in each step", lambda delay, n: delay * (n + 1))),
    Fault("straggler_periodic", _FAMILY, "some steps are slow", (RANK, STEP, _DELAY, _PERIOD), ("straggler",),
          "straggler", False, _STEPS, _periodic),
    Fault("clock_jump", _FAMILY, "the program's clock jumps", (RANK, STEP, _SECONDS), ("clock-jump",), "", False, _STEPS,
          _jump),
)  # fmt: skip
