"""Rule: the kernel has just killed processes for want of memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import ago
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of

_FRESH_S = 3600.0
_OURS = re.compile(r"python|torch|^pt_|^ray|train|slurm", re.IGNORECASE)


class KernelOomKill(ReadingRule):
    """Within the last hour the kernel killed a process that looks like a training job's, for want of memory.

    What it detects:
        "Killed process" in the kernel's messages, of a Python process or a loader worker.

    Why it hangs:
        What took the memory then may still be there, or the same job does it again; the rank that is killed says nothing.

    How to confirm:
        `dmesg -T | grep -i 'killed process'`; `ps aux --sort=-rss | head`.

    How to fix:
        Find what takes the memory; fewer workers, smaller batches, a larger limit.

    Sources:
        Documentation/admin-guide/mm/concepts.rst of the kernel: OOM killer.
    """

    id = "kernel-oom-kill"
    cause = "host-oom"
    reads = ("machine.kernel_log",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.kernel_log", messages=90),
                read(
                    "machine.kernel kernel.oom_kill",
                    name="python",
                    count=2,
                    age_s=600,
                    text="Killed process 42 (python)",
                ),
            ),
            (),
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read(
                    "machine.kernel kernel.oom_kill",
                    name="chrome",
                    count=2,
                    age_s=600,
                    text="Killed process 4 (chrome)",
                ),
            ),
            "a browser",
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.oom_kill", name="python", count=1, age_s=40000, text="Killed process 4"),
            ),
            "hours ago",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """A note for all hosts together."""
        killed = [
            r
            for r in s.readings.of("machine.kernel", subject="kernel.oom_kill")
            if (r.number("age_s") or 0) < _FRESH_S and _OURS.search(r.text("name"))
        ]
        if not killed:
            return
        last = min(killed, key=lambda r: r.number("age_s") or 0)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"the kernel killed {last['name']} on {hosts_of(killed)} for want of memory, {ago(last.number('age_s') or 0)}",
            confidence=0.6,
            culprit_ranks=(),
            because="An earlier job needed more memory than there was; the next one of the same size will, too.",
            evidence=cite(killed),
            fixes=(
                Fix(
                    "See what takes the memory now",
                    command="ps -eo pid,rss,etime,args --sort=-rss | head",
                    verify="free -g: as much available as the job needs",
                    undo="not needed",
                ),
            ),
        )
