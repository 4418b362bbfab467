"""Rule: rank 0 alone entered a collective."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.log_activity import failed_by_itself, work_before_the_wait
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import lines_of
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT
from unhang.rules.timeout.calls_disagree import timeouts
from unhang.rules.timeout.rank_lags import counted

_SAVING = "INFO Saving model checkpoint to out/checkpoint-500\n"


class Rank0Alone(Rule):
    """Rank 0 alone waited in a collective that the other ranks never made.

    What it detects:
        Timeouts of rank 0 and of no other rank, after it said that it saves or evaluates; or in the last call that it issued, if
        that is no barrier (in a barrier the others may merely be late).

    Why it hangs:
        A collective stands under `if rank == 0` (or is_main_process): saving sharded or DeepSpeed states, gathering, barriers at
        the end of a save are made by all ranks or by none.

    How to confirm:
        The stack of rank 0. If only rank 0's log was given, look at the others' first: they may have timed out as well.

    How to fix:
        Call the function on every rank; let it write on one.

    Sources:
        The rank that logs a timeout is one that waited.
    """

    id = "rank0-alone"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(log_case(_SAVING + timeouts((0, 140, "ALLREDUCE", 1))), (0,)),
        Fires(log_case("`Trainer.fit` stopped: `max_epochs=3` reached.\n" + timeouts((0, 140, "ALLREDUCE", 1))), (0,)),
        Fires(log_case(timeouts((0, 517, "_ALLGATHER_BASE", 64)) + "\n" + counted((0, 517, 516))), (0,)),
        Quiet(
            log_case(timeouts((0, 517, "_ALLGATHER_BASE", 64)) + "\n" + counted((0, 580, 516))),
            "calls run on behind it",
        ),
        Quiet(log_case(timeouts((0, 3, "ALLREDUCE", 1))), "a barrier: the others may still be at work"),
        Quiet(log_case(timeouts((0, 9, "ALLREDUCE", 1), (1, 9, "ALLREDUCE", 1))), "another rank waits as well"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if rank 0 is the only one that waited."""
        waits = s.watchdogs.timed_out
        if s.watchdogs.ranks != (0,) or s.watchdogs.seen not in ((), (0,)) or s.watchdogs.lagging[0]:
            return
        if s.events.has("watchdog.dump_signal", "progress.rank_done") or failed_by_itself(s.failures) is not None:
            return
        work = work_before_the_wait(s.events) or s.events.first("work.ended")
        if work is None and not any(x.keeps_cpu and not x.is_barrier for x in waits):
            return
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"rank 0 alone waited in {waits[0]}" + (f", after it told: {work.text.strip()[:80]}" if work else ""),
            confidence=0.75 if work and work.kind != "work.evaluating" else 0.6,
            culprit_ranks=(0,),
            because="No other rank waited for anything, so none of them was in this call or in any other: rank 0 made a collective that they did not make. "
            "(If this is the log of rank 0 alone, look at the other ranks' first.)",
            collective={"op": waits[0].op, "seq": waits[0].seq},
            evidence=(*(quote([work]) if work else ()), *quote(lines_of(waits))),
            fixes=(EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT),
        )
