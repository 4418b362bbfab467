"""Rule: the wall clock jumps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_MOST_S = 0.5


class ClockJump(ReadingRule):
    """The wall clock of a host was set while the check ran.

    What it detects:
        Within seconds the wall clock moved half a second further, or less far, than the clock that cannot be set.

    Why it hangs:
        Limits that a program counts by the wall clock end too early or never; logs of one host are out of order.

    How to confirm:
        `journalctl -u chronyd -u systemd-timesyncd | tail`; two daemons that set the clock against each other.

    How to fix:
        One time service only, which slews the clock instead of setting it.

    Sources:
        clock_gettime(2): CLOCK_REALTIME against CLOCK_MONOTONIC.
    """

    id = "clock-jump"
    cause = "unknown"
    reads = ("machine.clock",)
    EXAMPLES: ClassVar = (
        Fires(readings_case(read("machine.clock", rank=2, jump_s=-3600.0)), (2,)),
        Quiet(readings_case(read("machine.clock", jump_s=0.001, is_synchronised=False)), "no time server, but even"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts."""
        jumping = [r for r in s.readings.of("machine.clock") if abs(r.number("jump_s") or 0.0) > _MOST_S]
        if not jumping:
            return
        worst = max((r.number("jump_s") or 0.0 for r in jumping), key=abs)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the clock of {hosts_of(jumping)} jumped {abs(worst):.1f} s {'forward' if worst > 0 else 'back'} during the check",
            confidence=0.75,
            culprit_ranks=ranks_of(jumping),
            because="A clock that is set while a job runs breaks limits that are counted by it, and the order of logs.",
            evidence=cite(jumping),
            fixes=(
                Fix(
                    "One time service only",
                    command="systemctl list-units '*chrony*' '*ntp*' '*timesync*'; systemctl disable --now the others",
                    verify="unhang check --only machine, twice",
                    undo="systemctl enable --now what was disabled",
                ),
            ),
        )
