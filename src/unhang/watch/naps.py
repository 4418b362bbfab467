"""Sleeps whose end is known: a suspected job is not ended amid one that the others wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from unhang.watch.process_tree import sleep_left_s
from unhang.watch.ranks import WatchedRank

_WAKES_S = 1.0  # until a rank that has slept is seen to have moved


class Naps:
    """Waits out, once for each suspicion, the sleep of those that the others wait for.

    A pause that a server asked for ends by itself, at a time that the kernel knows. Who sleeps again after it, as a loop does that
    looks for something, is not waited for twice; nor is one that sleeps longer than the limit is long. Pure but for `left_s`.
    """

    def __init__(self) -> None:
        self._onset_ns, self._until = 0, 0.0

    def keep(self, verdict: Mapping[str, Any], here: Iterable[WatchedRank], limit_s: float, now: float) -> bool:
        """Whether such a sleep keeps the job from being ended now. `here`: the ranks of this node; `now`: CLOCK_MONOTONIC seconds."""
        if self._onset_ns != verdict["onset_ns"]:
            self._onset_ns = verdict["onset_ns"]
            left_s = shared_sleep_s([r.pid for r in here if r.rank not in verdict["waiting_ranks"]])
            self._until = now + left_s + _WAKES_S if 0 < left_s <= limit_s else now
        return now < self._until


def shared_sleep_s(pids: Collection[int]) -> float:
    """How long the longest of these sleeps goes on; 0 where one of the processes does not sleep, or there are none."""
    left = [sleep_left_s(pid) or 0.0 for pid in pids]
    return max(left) if left and all(left) else 0.0
