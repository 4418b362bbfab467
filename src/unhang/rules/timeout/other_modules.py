"""Rule: under ZeRO-3 the ranks ran different modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.log_activity import trained_on_after
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import minority
from unhang.model import Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.timeout.advice import NO_LONGER_TIMEOUT, SEE_IT
from unhang.rules.timeout.calls_disagree import timeouts

_LINE = "Invalidate trace cache @ step 1: expected module 25, but got module 323\n"


class OtherModules(LineRule):
    """Under ZeRO-3 the order of modules changed from step to step, and then ranks waited in a gather of parameters.

    What it detects:
        DeepSpeed's "Invalidate trace cache ... expected module A, but got module B", followed by timeouts in an all-gather.

    Why it hangs:
        ZeRO-3 gathers the parameters of the modules that run. Where the data decide which run (experts without tokens, batches
        without images), the ranks gather different parameters.

    How to confirm:
        Print the names of the modules that run on each rank in the step that stops.

    How to fix:
        Run every module on every rank (a dummy input times zero), or mark the block with set_z3_leaf_modules.

    Sources:
        DeepSpeed, partitioned_param_coordinator: the trace is rebuilt when the order of modules changes.
    """

    id = "other-modules"
    cause = "code-divergence"
    kinds = ("progress.trace_cache",)
    confidence = 0.8
    headline = "the modules run in another order than in the step before, and the ranks wait in a gather of parameters: they run different modules"
    reason = "ZeRO-3 gathers what each rank runs. The trace changed, so which modules run depends on the data, and the ranks' data differ. (The line alone is harmless.)"
    fixes = (
        Fix(
            "Run the same modules on every rank",
            patch="deepspeed.utils.set_z3_leaf_modules(model, [MoeBlock])   # or a dummy pass through the unused branch, times 0",
            verify="unhang run -- <the same command>: outcome clean",
            undo="revert the edit",
        ),
        SEE_IT,
        NO_LONGER_TIMEOUT,
    )
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                _LINE
                + timeouts((1, 9, "_ALLGATHER_BASE", 64), (2, 9, "_ALLGATHER_BASE", 64), (7, 9, "_ALLGATHER_BASE", 64))
            ),
            (),
        ),
        Quiet(log_case(_LINE + "{'loss': 6.16}\n{'loss': 6.10}"), "the job goes on"),
        Quiet(log_case(_LINE + timeouts((1, 9, "BROADCAST", 1))), "no gather of parameters"),
        Quiet(log_case(_LINE + "{'loss': 6.1}\n" + timeouts((1, 9, "_ALLGATHER_BASE", 64))), "they trained on"),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines, if ranks wait in an all-gather and nobody had trained on before."""
        if not any("ALLGATHER" in x.op for x in s.watchdogs.timed_out):
            return ()
        return [e for e in super().evidence(s) if not trained_on_after(s.events, e)]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The rank that gathers something else than the majority."""
        return next(
            (
                odd
                for at in s.watchdogs.positions
                if (odd := minority({x.rank: x.numel_in for x in at if x.rank is not None}))
            ),
            (),
        )
