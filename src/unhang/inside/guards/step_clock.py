"""How long the steps of this rank take, and with what: the baseline is the job's own median."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Any, NamedTuple

WARM_UP = 10
BASELINE = 200
_LEAST_KNOWN = 10
# A step of a millisecond is easily twice as long as another; nobody wants to hear of that.
_LEAST_EXCESS_S = 0.02
_NEW_MEDIAN_EVERY = 32
_RECORDERS = ("_unhang_inside.recorder.recording", "unhang.inside.recorder.recording")
_RECORDED = {1: "data", 2: "forward", 3: "backward", 4: "optimizer", 5: "checkpoint"}
COMMUNICATION = "communication"


class SlowStep(NamedTuple):
    """A step that took much longer than the median. `spent`: seconds in each phase that is known."""

    step: int
    seconds: float
    median_s: float
    spent: dict[str, float]

    @property
    def is_of_others(self) -> bool:
        """Whether most of what is known of the step is waiting for other ranks."""
        return self.spent.get(COMMUNICATION, 0.0) > self.seconds / 2

    def __str__(self) -> str:
        shares = sorted(((seconds / self.seconds, name) for name, seconds in self.spent.items()), reverse=True)
        shares = [(share, name) for share, name in shares if share >= 0.005]
        other = 1 - sum(share for share, _ in shares)
        parts = [f"{name} {share:.0%}".replace("%", " %") for share, name in shares]
        where = ", ".join([*parts, f"other {max(0.0, other):.0%}".replace("%", " %")]) if parts else "phases unknown"
        times = self.seconds / self.median_s
        return f"step {self.step} took {self.seconds:.3g} s, {times:.1f}x this job's median of {self.median_s:.3g} s: {where}"


class StepClock:
    """Counts steps and measures them, in the thread that made it."""

    def __init__(self, slow: float = 2.0, clock: Callable[[], float] = time.perf_counter) -> None:
        """`slow`: so many times the median is a slow step."""
        self.steps = 0
        self.median_s = 0.0
        self.last = clock()
        self.phase = ""
        self._clock, self._slow = clock, slow
        self._took: deque[float] = deque(maxlen=BASELINE)
        self._slow_above = float("inf")
        self._spent: dict[str, float] = {}
        self._since = self.last
        self._open = 0
        self._owner = get_ident()
        self._page: Any = None
        self._enter: Any = None

    def step(self) -> SlowStep | None:
        """A step is done; says so if it was a slow one."""
        now = self._clock()
        took = now - self.last
        self.last = now
        self.steps = steps = self.steps + 1
        if self.phase:
            self._count(now)
        slow = None
        if took > self._slow_above:
            slow = SlowStep(steps, took, self.median_s, self._spent)
        if self._spent:
            self._spent = {}
        if steps > WARM_UP:
            self._took.append(took)
            if not steps % _NEW_MEDIAN_EVERY or len(self._took) == _LEAST_KNOWN:
                self._new_median()
        return slow

    def _new_median(self) -> None:
        ordered, middle = sorted(self._took), len(self._took) // 2
        # Not the standard library's: its module brings fractions and decimals, a third of our import.
        self.median_s = (ordered[middle] + ordered[~middle]) / 2
        if len(self._took) >= _LEAST_KNOWN:
            self._slow_above = max(self.median_s * self._slow, self.median_s + _LEAST_EXCESS_S)

    def _count(self, now: float) -> None:
        self._spent[self.phase] = self._spent.get(self.phase, 0.0) + now - self._since
        self._since = now

    def switch(self, phase: str) -> str:
        """Another phase begins, "" for none; returns the one before. Time counts for the innermost phase only."""
        before, now = self.phase, self._clock()
        if before:
            self._count(now)
        self.phase, self._since = phase, now
        return before

    def follow_recorder(self) -> None:
        """Learns the phases that the recorder marks, where `unhang run` has put one into this process."""
        if self._page is not None:
            return
        recording = next((r for n in _RECORDERS if (r := getattr(sys.modules.get(n), "current", None))), None)
        page = getattr(recording, "page", None)
        if page is None:
            return
        self._page, enter = page, page.enter

        def enter_and_count(phase: int) -> Any:
            if not self._open and get_ident() == self._owner:
                self.switch(_RECORDED.get(phase, ""))
            return enter(phase)

        self._enter = page.enter = enter_and_count

    def leave_recorder(self) -> None:
        """Learns no more from it."""
        if self._page is not None and self._page.__dict__.get("enter") is self._enter:
            del self._page.enter


class Phase:
    """A stretch of a step, such as `data`; of no effect in other threads than the clock's own."""

    __slots__ = ("_before", "_clock", "_is_ours", "name")

    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock, self.name = clock, name
        self._before = ""
        self._is_ours = False

    def __enter__(self) -> Phase:
        self._is_ours = get_ident() == self._clock._owner
        if self._is_ours:
            self._clock._open += 1
            self._before = self._clock.switch(self.name)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._is_ours:
            self._clock._open -= 1
            self._clock.switch(self._before)
