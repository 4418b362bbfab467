"""Rule: data without a length, and ranks that wait in the middle of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case
from unhang.rules.line_rule import LineRule
from unhang.rules.timeout.advice import EQUAL_BATCHES, NO_LONGER_TIMEOUT, SEE_IT
from unhang.rules.timeout.calls_disagree import timeouts

_SMALL = 1024


class UnboundedData(LineRule):
    """The data set has no known length, and some ranks wait for others in the middle of training.

    What it detects:
        Progress without a total ("80/inf", "80/?") as the last thing told before timeouts of some ranks in a small all-reduce.

    Why it hangs:
        Streaming and iterable data sets hand the ranks different numbers of batches, unless told not to.

    How to confirm:
        Count the batches on each rank: they differ at the step of the stop.

    How to fix:
        Let the library shard evenly and drop the last batches, or decide together when to end.

    Sources:
        torch.utils.data.IterableDataset: the sampler cannot even out what has no length.
    """

    id = "unbounded-data"
    cause = "uneven-inputs"
    kinds = ("progress.unbounded",)
    confidence = 0.65
    headline = "a stream of data without a length, and ranks that wait in the middle of it: the ranks probably have different numbers of batches"
    reason = "Training was under way on data that has no known length, and only some ranks wait. It is inferred: the counts of batches are not in the log."
    fixes = (EQUAL_BATCHES, SEE_IT, NO_LONGER_TIMEOUT)
    EXAMPLES: ClassVar = (
        Fires(
            log_case("INFO RANK 0: BATCH 80/inf\n" + timeouts((6, 70426, "ALLREDUCE", 1), (3, 70426, "ALLREDUCE", 1))),
            (),
        ),
        Quiet(log_case("INFO RANK 0: BATCH 80/inf"), "it runs"),
        Quiet(
            log_case("INFO RANK 0: BATCH 80/inf\n" + timeouts((6, 7, "ALLREDUCE", 1), (3, 7, "REDUCE", 1))),
            "other calls",
        ),
        Quiet(
            log_case("1042it [12:10,  1.43it/s]\n" + timeouts((0, 70426, "ALLREDUCE", 1), (1, 70426, "ALLREDUCE", 1))),
            "as far as is known all ranks wait",
        ),
        Quiet(
            log_case("1042it [12:10,  1.43it/s]\n" + timeouts((6, 70426, "ALLREDUCE", 9000000))),
            "a bucket of gradients: any rank may be stuck",
        ),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """The last such line, if ranks wait in the same call after it, and not in the first calls of the job."""
        told = super().evidence(s)
        waits = [x for x in s.watchdogs.timed_out if x.op]
        if not told or not waits or len({(x.op, x.numel_in) for x in waits}) != 1 or s.watchdogs.lagging[0]:
            return ()
        ranks = s.watchdogs.ranks
        if ranks == tuple(range(len(ranks))) or not 0 < (waits[0].numel_in or 0) <= _SMALL:
            return ()
        return told[-1:] if told[-1].order < waits[0].events[0].order and (waits[0].seq or 0) > 10 else ()

    def culprits(self, s: Situation, events: Sequence[LogEvent]) -> tuple[int, ...]:
        """Not told."""
        return ()
