"""Rule: a rank skipped a step alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule

_TIMEOUT = "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
_SKIPPED = "[rank3]: WARNING: ran out of memory with exception: CUDA out of memory; skipping batch\n"


class SkippedStep(LineRule):
    """A rank skipped a step on its own: the others wait in the collectives of that step.

    What it detects:
        A line that says that a batch or step was skipped for an error, a NaN or want of memory, and then a collective that times
        out on other ranks.

    Why it hangs:
        The rank makes no collective for the step that it left out, or joins those of the next step with the wrong partner.

    How to confirm:
        Whether every rank printed the line for the same step.

    How to fix:
        All ranks skip the step together, or none: reduce a flag before the decision.

    Sources:
        Public incidents: the most frequent way in which handling of errors makes a hang.
    """

    id = "skipped-step"
    cause = "code-divergence"
    kinds = ("learn.step_skipped",)
    confidence = 0.84
    EXAMPLES: ClassVar = (
        Fires(log_case("step 8, loss 0.4\n" + _SKIPPED + _TIMEOUT), (3,)),
        Quiet(log_case(_SKIPPED + "step 9, loss 0.4\nstep 10, loss 0.4\n"), "the job went on"),
        Quiet(log_case(_TIMEOUT + _SKIPPED), "the line came after the timeout"),
    )
    headline = "a rank skipped a step alone, and the others wait for it"
    reason = "The step was left out where the error was handled; the collectives of that step were made by the other ranks only."

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The last skips before the first timeout."""
        timeout = next((e for e in s.events if e.says == "hang"), None)
        found = [e for e in s.events.of(*self.kinds) if timeout is not None and e.order < timeout.order]
        if not found or timeout is None:
            return ()
        steps = [e for e in s.events.of("progress.step") if found[-1].order < e.order < timeout.order]
        waiting = set(s.watchdogs.ranks)
        told = {e.rank for e in found if e.rank is not None}
        return found[-3:] if len(steps) <= 2 and not (told and told >= waiting) else ()

    fixes = (
        Fix(
            "Skip together",
            patch="bad = torch.tensor(float(failed), device=device); dist.all_reduce(bad, op=dist.ReduceOp.MAX)\n"
            "if bad.item() > 0: continue   # on every rank",
            verify="unhang run -- <the same command>: all ranks skip the same step",
            undo="revert the edit",
        ),
        Fix(
            "Does not help: a longer timeout",
            setting="leave the timeout as it is: the calls of the skipped step never come",
            verify="the same timeout, later",
            undo="nothing is changed",
        ),
    )
