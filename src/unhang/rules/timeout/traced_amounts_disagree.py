"""Rule: NCCL's own trace shows the ranks in the same call with other amounts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.fingerprints import first_disagreement, values_of
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import minority
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import NO_LONGER_TIMEOUT
from unhang.rules.timeout.amounts_disagree import PAD
from unhang.rules.timeout.traced_calls_disagree import is_one_tensor, traced


class TracedAmountsDisagree(Rule):
    """The ranks brought tensors of different size to the same collective, as NCCL's trace tells.

    What it detects:
        Lines of NCCL_DEBUG_SUBSYS=COLL with the same opCount, operation and type, and different counts.

    Why it hangs:
        NCCL does not compare sizes: a rank that expects more waits for data that nobody sends.

    How to confirm:
        Print the shape on each rank before the call.

    How to fix:
        Pad to a common size, exchange the sizes first, or drop the last incomplete batch.

    Sources:
        NCCL's documentation: counts and types must match on all ranks.
    """

    id = "traced-amounts-disagree"
    cause = "size-mismatch"
    EXAMPLES: ClassVar = (
        Fires(
            log_case(
                traced((0, "AllGather", "28c", 41), (1, "AllGather", "28c", 40), (2, "AllGather", "28c", 41)),
            ),
            (1,),
        ),
        Quiet(log_case(traced((0, "AllReduce", "28c", 99), (1, "AllGather", "28c", 5))), "other calls"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first position at which the amounts differ."""
        calls = first_disagreement(s.events)
        if not calls or not is_one_tensor(calls):
            return
        odd = minority(values_of(calls))
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{calls[0].op} with different amounts: " + ", ".join(f"{c.name} {c.numel}" for c in calls[:6]),
            confidence=0.85,
            culprit_ranks=odd,
            victim_ranks=s.others(odd) if odd else (),
            because="All members of this operation must bring the same amount; NCCL traced the same operation with different counts.",
            collective={"op": calls[0].op, "seq": calls[0].position},
            evidence=quote(c.event for c in calls),
            fixes=(PAD, NO_LONGER_TIMEOUT),
        )
