"""Rule: the guards have ended a job because a rank was stopped by a signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule

_SAID = (
    "[unhang] rank 1 failed: it was stopped by a signal (SIGSTOP, SIGTSTP; pid 4711) and has not gone on for 4 s; it is "
    "continued now, only to end"
)


class StoppedBySignal(LineRule):
    """A rank was stopped by a signal, and the guards of the ranks beside it ended the job.

    What it detects:
        The line that `unhang.process_group` prints on every rank when a rank beside it has been stopped for some seconds.

    Why it hangs:
        A stopped process runs no line: it hears of no failure, and SIGTERM does not reach it. All others wait for it.

    How to confirm:
        Who sent the signal: a Ctrl-Z in a shared terminal, a scheduler that suspends jobs, a script with `kill -STOP`.

    How to fix:
        Stop no single rank. To pause a job, suspend all of its processes: the guards then begin to count anew.

    Sources:
        signal(7): a stopped process gets SIGTERM only when it goes on.
    """

    id = "stopped-by-signal"
    cause = "rank-frozen"
    kinds = ("guards.stopped",)
    confidence = 0.97
    EXAMPLES: ClassVar = (
        Fires(log_case(f"step 5 loss 1.2\n{_SAID}\n"), (1,)),
        Quiet(log_case("[unhang] rank 1 failed: ValueError: corrupt\n"), "it failed by itself"),
    )
    headline = "a rank was stopped by a signal, and the job was ended"
    reason = "The ranks beside it saw the process in the state T (stopped) of the kernel for seconds, and no debugger held it."
    fixes = (
        Fix(
            "Find out who stops it",
            command="ausearch -sc kill -i | tail   # where auditd runs; else: who was logged in, what did the scheduler do",
            verify="the job runs past this step",
            undo="nothing is changed",
        ),
    )

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The stopped rank, which the line names."""
        return tuple(sorted({rank for e in events if (rank := e.number("failed")) is not None}))

    def title(self, s: Situation, events: Sequence[LogEvent]) -> str:
        """With the rank."""
        ranks = self.culprits(s, events)
        return f"rank {ranks[0]} was stopped by a signal, and the job was ended" if ranks else self.headline
