"""The wall clock: whether it runs evenly, whether something keeps it right, and how far it is from that of another machine."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_STA_UNSYNC = 0x40
_TIMEX_BYTES, _STATUS_WORD = 512, 5  # struct timex: modes, then longs offset, freq, maxerror, esterror, then status


@dataclass(frozen=True, slots=True)
class Bracket:
    """The wall clock before and after something that all ranks did together: nobody left before everyone had come."""

    came_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far another clock is ahead of ours, and how sure that is: the truth is within `offset_s` +- `uncertainty_s`."""

    offset_s: float
    uncertainty_s: float


def bracket_offset(own: Iterable[Bracket], other: Iterable[Bracket]) -> ClockOffset | None:
    """From meetings of two ranks, one bracket each. None where they contradict each other: a clock was set meanwhile.

    Who leaves has seen that the other had come: the other's `came_s` lies before our `left_s`, and ours before its own. Both
    bound the offset, as the two ways of a packet do in NTP (RFC 5905).
    """
    least, most = float("-inf"), float("inf")
    for mine, its in zip(own, other, strict=False):
        least, most = max(least, its.came_s - mine.left_s), min(most, its.left_s - mine.came_s)
    if not least <= most or least == float("-inf"):
        return None
    return ClockOffset((least + most) / 2, (most - least) / 2)


class EvenClock:
    """Compares the wall clock with one that cannot be set."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def jump_s(self) -> float:
        """By how much the wall clock has jumped since the beginning; about 0 where nobody set it."""
        return (time.time() - self._wall) - (time.monotonic() - self._steady)


def is_synchronised() -> bool | None:
    """Whether the kernel knows of somebody (NTP, PTP) that keeps its clock right; None where it does not tell."""
    if sys.platform != "linux":
        return None
    with suppress(OSError, AttributeError, ValueError):
        libc = ctypes.CDLL(None, use_errno=True)
        words = (ctypes.c_long * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_long)))()
        if libc.adjtimex(ctypes.byref(words)) < 0:
            return None
        return not words[_STATUS_WORD] & _STA_UNSYNC
    return None
