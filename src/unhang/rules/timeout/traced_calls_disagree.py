"""Rule: NCCL's own trace shows the ranks in different calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.fingerprints import TracedCall, first_disagreement, values_of
from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import are_far_apart, minority
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT

_LINE = (
    "node-a:{0}:{0} [{0}] NCCL INFO {1}: opCount {2} sendbuff 0x7f recvbuff 0x7f acc (nil) count {3} datatype 7 op 0 root 0 "
    "comm 0x5{0} [nranks=4] stream 0x56 task 0 globalrank {0}"
)
_SIZED_BY_USER = frozenset({"AllGather", "Broadcast", "Reduce"})


def traced(*calls: tuple[int, str, str, int]) -> str:
    """A log of traced calls, for examples: (rank, op, opCount, count)."""
    return "\n".join(_LINE.format(*call) for call in calls)


def is_one_tensor(calls: tuple[TracedCall, ...]) -> bool:
    """Whether it is the same call with other amounts: of one type, of an operation whose sizes are the program's own choice."""
    kinds = {(c.op, c.dtype) for c in calls}
    return len(kinds) == 1 and calls[0].op in _SIZED_BY_USER and not are_far_apart(c.numel for c in calls)


class TracedCallsDisagree(Rule):
    """At the same position of a communicator the ranks called different collectives, as NCCL's trace tells.

    What it detects:
        Lines of NCCL_DEBUG_SUBSYS=COLL with the same opCount, of which one has another operation, type or tensor.

    Why it hangs:
        The ranks took different branches: their calls do not match, and NCCL does not compare them.

    How to confirm:
        The last call that all ranks have in common; the program's next decision after it.

    How to fix:
        Take the decision once for all ranks (broadcast it), or make the call on every rank.

    Sources:
        NCCL's documentation of NCCL_DEBUG_SUBSYS; opCount counts the operations of a communicator.
    """

    id = "traced-calls-disagree"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(
            log_case(traced((0, "AllReduce", "28c", 99), (1, "AllReduce", "28c", 99), (2, "AllGather", "28c", 5))), (2,)
        ),
        Fires(log_case(traced((0, "Broadcast", "0", 25503912), (1, "Broadcast", "0", 53))), ()),
        Quiet(log_case(traced((0, "AllReduce", "28c", 99), (1, "AllReduce", "28d", 5))), "other positions"),
        Quiet(log_case(traced((0, "AllGather", "28c", 41), (1, "AllGather", "28c", 40))), "another size of the same"),
        Quiet(
            log_case(
                traced((0, "AllReduce", "1", 9), (1, "AllReduce", "1", 9))
                + "\n"
                + traced((0, "AllGather", "1", 5)).replace("0x50", "0x99")
            ),
            "another communicator of the same size",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first position at which the traces differ."""
        calls = first_disagreement(s.events)
        if not calls or is_one_tensor(calls):
            return
        odd = minority(values_of(calls))
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"operation {calls[0].position:x} of the communicator: "
            + ", ".join(f"{c.name} {c}" for c in calls[:4]),
            confidence=0.85,
            culprit_ranks=odd,
            victim_ranks=s.others(odd) if odd else (),
            because="NCCL traced them at the same position, and they are different calls: the programs had parted before it.",
            collective={"op": calls[0].op, "seq": calls[0].position},
            evidence=quote(c.event for c in calls),
            fixes=(EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT),
        )
