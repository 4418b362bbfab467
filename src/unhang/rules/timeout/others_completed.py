"""Rule: one rank alone waits in a call that all others have completed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import lines_of
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import SEE_IT
from unhang.rules.timeout.amounts_disagree import PAD
from unhang.rules.timeout.calls_disagree import timeouts

_LEAST = 2


class OthersCompleted(Rule):
    """One rank alone timed out, in the first call, after the others had told that they completed it.

    What it detects:
        A timeout of exactly one rank, and before it lines of at least two others that say that they completed.

    Why it hangs:
        They made the same call, so the rank is not alone in it: it expects more data than they sent.

    How to confirm:
        Print the shape before the call on every rank.

    How to fix:
        The same size on every rank.

    Sources:
        NCCL does not compare sizes; the ranks with the smaller count finish.
    """

    id = "others-completed"
    cause = "size-mismatch"
    EXAMPLES: ClassVar = (
        Fires(log_case("Rank 1 completed\nRank 2 completed\n" + timeouts((0, 1, "ALLREDUCE", 20))), (0,)),
        Quiet(log_case("Rank 1 completed\n" + timeouts((0, 1, "ALLREDUCE", 20), (2, 1, "ALLREDUCE", 20))), "two wait"),
        Quiet(
            log_case("Rank 1 completed\nRank 2 completed\n" + timeouts((0, 907, "ALLREDUCE", 20))),
            "another, later call",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if a single rank waits in the first call."""
        waits = s.watchdogs.timed_out
        if len(s.watchdogs.ranks) != 1 or not waits or waits[0].seq not in (0, 1):
            return
        alone = s.watchdogs.ranks
        done = [
            e
            for e in s.events.of("progress.rank_done")
            if e.rank not in (None, *alone) and e.order < waits[0].events[0].order
        ]
        if len({e.rank for e in done}) < _LEAST:
            return
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"rank {alone[0]} alone waits in {waits[0]}, which {len({e.rank for e in done})} others completed",
            confidence=0.7,
            culprit_ranks=alone,
            victim_ranks=(),
            because="The others came and went, so nobody is missing: this rank expects more data than they brought.",
            collective={"op": waits[0].op, "seq": waits[0].seq},
            evidence=(*quote(lines_of(waits), 2), *quote(done, 3)),
            fixes=(PAD, SEE_IT),
        )
