"""The wall clock: whether it runs evenly, whether something keeps it right, and how far it is from that of another machine."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from unhang.check.participants import Participants
from unhang.model import Reading, Unavailable

_ROUNDS = 3
_EXCHANGE_LIMIT_S = 20.0
_STA_UNSYNC = 0x40
_TIMEX_BYTES, _STATUS_WORD = 512, 5  # struct timex: modes, then longs offset, freq, maxerror, esterror, then status


class Bracket(NamedTuple):
    """The wall clock before and after something that all ranks did together: nobody left before everyone had come."""

    came_s: float
    left_s: float


class ClockOffset(NamedTuple):
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

    def read(self) -> Iterator[Reading]:
        """Whether the clock has jumped, and whether something keeps it right."""
        fields = {"jump_s": round(self.jump_s(), 3), "is_synchronised": is_synchronised()}
        yield Reading("machine.clock", "", fields)


def is_synchronised() -> bool | None:
    """Whether the kernel knows of somebody (NTP, PTP) that keeps its clock right; None where it does not say."""
    with suppress(OSError, AttributeError, ValueError):
        libc = ctypes.CDLL(None, use_errno=True)
        words = (ctypes.c_long * (_TIMEX_BYTES // ctypes.sizeof(ctypes.c_long)))()
        if sys.platform == "linux" and libc.adjtimex(ctypes.byref(words)) >= 0:
            return not words[_STATUS_WORD] & _STA_UNSYNC
    return None


def read_offset(participants: Participants) -> Iterator[Reading | Unavailable]:
    """How far this rank's clock is ahead of the first rank's. Blocks up to the limits of four exchanges."""
    brackets: list[Bracket | None] = []
    for number in range(_ROUNDS):
        came_s = time.time()
        met = participants.exchange(f"machine/clock/{number}", None, _EXCHANGE_LIMIT_S)
        is_whole = len(met) > 1 and set(met) >= set(participants.present)
        brackets.append(Bracket(came_s, time.time()) if is_whole else None)
    everyone: dict[int, Any] = participants.exchange("machine/clocks", brackets, _EXCHANGE_LIMIT_S)
    first = min(everyone)
    pairs = [(Bracket(*a), b) for a, b in zip(everyone[first], brackets, strict=False) if a and b]
    found = bracket_offset([theirs for theirs, _ in pairs], [ours for _, ours in pairs])
    if len(everyone) < 2 or found is None:
        yield Unavailable("machine.clock_offset", "the ranks did not meet, or a clock was set while they did")
        return
    offset_s, uncertainty_s = (0.0, 0.0) if first == participants.member.rank else found
    fields = {"offset_s": round(offset_s, 4), "uncertainty_s": round(uncertainty_s, 4), "reference_rank": first}
    yield Reading("machine.clock_offset", "", fields)
