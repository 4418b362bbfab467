"""Rule: at the timeout the ranks brought tensors of different size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import are_far_apart, lines_of, minority
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import NO_LONGER_TIMEOUT
from unhang.rules.timeout.calls_disagree import timeouts

_NEEDS_EQUAL = frozenset({"ALLGATHER", "BROADCAST", "REDUCE"})
PAD = Fix(
    "Pad to the largest, or gather with sizes",
    patch="n = torch.tensor([x.shape[0]]); dist.all_reduce(n, op=MAX); x = F.pad(x, ...)   # then cut after the gather",
    verify="unhang run -- <the same command>: outcome clean",
    undo="revert the edit",
)


class AmountsDisagree(Rule):
    """The ranks brought tensors of different size to the same collective.

    What it detects:
        Timeouts at the same position and of the same operation, which tell different numbers of elements.

    Why it hangs:
        NCCL does not compare sizes: a rank that expects more waits for data that nobody sends.

    How to confirm:
        Print the shape on each rank before the call: the last batch of an epoch, dropped samples, sequences of other length.

    How to fix:
        Pad to a common size, exchange the sizes first, or drop the last incomplete batch.

    Sources:
        NCCL's documentation: counts and types must match on all ranks.
    """

    id = "amounts-disagree"
    cause = "size-mismatch"
    EXAMPLES: ClassVar = (
        Fires(log_case(timeouts((0, 9, "ALLGATHER", 41), (1, 9, "ALLGATHER", 40), (2, 9, "ALLGATHER", 41))), (1,)),
        Quiet(log_case(timeouts((0, 9, "COALESCED", 41), (1, 9, "COALESCED", 40))), "parts of it may be uneven"),
        Quiet(
            log_case(timeouts((0, 9, "BROADCAST", 24084544), (1, 9, "BROADCAST", 64))),
            "so far apart that other tensors are meant",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first position with different amounts."""
        for waits in s.watchdogs.positions:
            told = [x for x in waits if x.numel_in is not None and x.op in _NEEDS_EQUAL and x.rank is not None]
            values = {x.rank: x.numel_in for x in told if x.rank is not None}
            sizes_told = [n for n in values.values() if n is not None]
            if len({x.op for x in told}) != 1 or len(set(sizes_told)) < 2:
                continue
            if told[0].op != "ALLGATHER" and are_far_apart(sizes_told):
                continue
            odd = minority(values)
            sizes = ", ".join(f"rank {rank} {n}" for rank, n in sorted(values.items())[:6])
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{told[0].op} with different numbers of elements: {sizes}",
                confidence=0.85,
                culprit_ranks=odd,
                victim_ranks=tuple(r for r in values if r not in odd) if odd else (),
                because="All members of this operation must bring the same amount."
                + ("" if odd else f" {w.name_ranks(sorted(values))} differ, and none of them has a majority."),
                collective={"op": told[0].op, "seq": told[0].seq},
                evidence=quote(lines_of(told)),
                fixes=(PAD, NO_LONGER_TIMEOUT),
            )
            return
