"""When to look, when to suspect: thresholds that learn from this job. Pure; the clock is passed in.

A quiet that ended by itself was no hang: the next look waits longer than that one lasted. So a job with regular long steps is
looked at a few times in all, not once per step.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_LOOK_S = 1.0
LEAST_STALL_S = 15.0
START_UP_STALL_S = 60.0
STALL_FACTOR = 3.0


@dataclass
class Patience:
    """What the watcher has learnt. `asked_s`: the user's own `--stall-after`, which is not adapted."""

    asked_s: float | None = None
    longest_quiet_s: float = 0.0
    look_after_s: float = FIRST_LOOK_S
    has_moved: bool = False

    def stall_after_s(self) -> float:
        """How long a wait may last before it is suspected."""
        if self.asked_s is not None:
            return self.asked_s
        least = LEAST_STALL_S if self.has_moved else START_UP_STALL_S
        return max(least, STALL_FACTOR * self.longest_quiet_s)

    def quiet_ended(self, quiet_s: float, was_looked_at: bool) -> None:
        """Learns from a quiet that ended by itself."""
        self.has_moved = True
        self.longest_quiet_s = max(self.longest_quiet_s, quiet_s)
        if was_looked_at:
            self.look_after_s = max(self.look_after_s, 1.5 * quiet_s)

    def is_time_to_look(self, quiet_s: float, last_look_at_s: float | None) -> bool:
        """Whether a quiet is worth a look: the first after `look_after_s`, later ones at three times the age of the last."""
        if last_look_at_s is None:
            return quiet_s >= min(self.look_after_s, self.stall_after_s())
        return last_look_at_s < self.stall_after_s() <= quiet_s or quiet_s >= 3 * last_look_at_s
