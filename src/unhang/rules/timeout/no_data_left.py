"""Rule: a rank had no data left, the others waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.log_activity import trained_on_after
from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.timeout.advice import EQUAL_BATCHES, NO_LONGER_TIMEOUT
from unhang.rules.timeout.calls_disagree import timeouts


class NoDataLeft(LineRule):
    """The program itself says that a rank has no data left, and others waited until their limit.

    What it detects:
        A line such as "ran out of data" or "detected uneven workload", together with a timeout or a failed barrier.

    Why it hangs:
        The ranks have different numbers of batches; the others wait for the next gradient.

    How to confirm:
        Print the number of batches of each rank per epoch.

    How to fix:
        drop_last, padding, or Join; or decide together when the epoch ends.

    Sources:
        torch.distributed.algorithms.join.
    """

    id = "no-data-left"
    cause = "uneven-inputs"
    kinds = ("progress.no_data",)
    confidence = 0.85
    headline = "a rank had no data left while the others waited for it"
    reason = "The program says that the data ended on a rank, and others waited in a collective until the limit: the ranks have different numbers of batches."
    fixes = (EQUAL_BATCHES, NO_LONGER_TIMEOUT)
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                "[rank2]: no more data for this epoch\n"
                + timeouts((0, 99, "ALLREDUCE", 4096), (1, 99, "ALLREDUCE", 4096))
            ),
            (2,),
        ),
        Quiet(log_case("INFO worker: no more data, epoch done\nINFO epoch 2 begins"), "nobody waited"),
        Quiet(
            log_case("dataset exhausted, restarting\n{'loss': 1.2}\n" + timeouts((0, 99, "ALLREDUCE", 4096))),
            "they trained on",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The lines, if somebody waited too long and nobody had trained on before."""
        if not any(e.says == "hang" for e in s.events):
            return ()
        return [e for e in super().evidence(s) if not trained_on_after(s.events, e)]

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """The rank that rank 0 missed in the barrier, else those that said that they have no data and did not wait."""
        missed = sorted(
            {n for e in s.events.of("gloo.monitored_barrier_missing") if (n := e.number("missing")) is not None}
        )
        if missed:
            return tuple(missed)
        waited = s.watchdogs.ranks
        told = super().culprits(s, events)
        return told if told and not set(told) & set(waited) and len(told) < len(s.case.world or (0, 0, 0)) else ()
