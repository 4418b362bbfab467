"""Rule: at the timeout the ranks were in different calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import UNEVEN_OPS, TimedOut, are_far_apart, lines_of, minority
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT

# Of these the sizes are the program's own choice; of the others (buckets, shards) they follow from which tensor it is.
_SIZED_BY_USER = frozenset({"ALLGATHER", "BROADCAST", "REDUCE"})
_LINE = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, "
    "OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)


def timeouts(*waits: tuple[int, int, str, int]) -> str:
    """A log of timeouts, for examples: (rank, seq, op, numel)."""
    return "\n".join(_LINE.format(*wait) for wait in waits)


class CallsDisagree(Rule):
    """Ranks that timed out at the same position of a group were in different calls.

    What it detects:
        Timeouts with the same sequence number, of which one names another operation, or another amount of a gradient bucket
        or parameter shard, than the others.

    Why it hangs:
        The ranks take different branches: each waits in a call that the others never make.

    How to confirm:
        `unhang run -- ...` or flight-recorder dumps show the line of each rank. Look for a branch on data, on the rank, or on
        a value that is not the same on all ranks (a loss that only rank 0 holds, modules that only some batches use).

    How to fix:
        Make the decision once for all ranks (broadcast it), or make the call on every rank.

    Sources:
        torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: SeqNum counts the collectives of a group.
    """

    id = "calls-disagree"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(
            log_case(timeouts((0, 7, "REDUCE", 1), (1, 7, "_ALLGATHER_BASE", 64), (2, 7, "_ALLGATHER_BASE", 64))), (0,)
        ),
        Fires(
            log_case(timeouts((0, 9, "ALLREDUCE", 900), (1, 9, "ALLREDUCE", 512), (2, 9, "ALLREDUCE", 900))),
            (1,),
        ),
        Fires(log_case(timeouts((0, 9, "ALLREDUCE", 900), (1, 9, "BROADCAST", 1))), ()),
        Fires(log_case(timeouts((0, 9, "BROADCAST", 24084544), (1, 9, "BROADCAST", 64))), ()),
        Quiet(
            log_case(
                timeouts((0, 9, "ALLREDUCE", 9))
                + "\n"
                + timeouts((1, 9, "_ALLGATHER_BASE", 5)).replace("[rank1]", "[rank5]")
            ),
            "rank 5 is rank 1 of another group",
        ),
        Quiet(log_case(timeouts((0, 9, "ALLTOALL_BASE", 9), (1, 9, "ALLTOALL_BASE", 5))), "parts may be uneven"),
        Quiet(
            log_case(timeouts((1, 9, "BROADCAST", 9), (0, 11, "_ALLGATHER_BASE", 5))),
            "a root may go on before the others",
        ),
        Quiet(
            log_case(timeouts((0, 9, "ALLREDUCE", 9), (1, 9, "ALLREDUCE", 9))),
            "they agree: the missing one is elsewhere",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first position at which ranks were in different calls."""
        for waits in s.watchdogs.positions:
            told = [x for x in waits if x.op and x.op != "UNKNOWN"]
            if len({x.op for x in told}) > 1:
                yield _finding(told, {x.rank: x.op for x in told if x.rank is not None}, "operations")
                return
            if _amounts_differ(told):
                yield _finding(told, {x.rank: x.numel_in for x in told if x.rank is not None}, "amounts")
                return


def _amounts_differ(waits: Sequence[TimedOut]) -> bool:
    sizes = [(x.op, x.numel_in) for x in waits if x.numel_in is not None and x.op not in UNEVEN_OPS]
    by_program = {n for op, n in sizes if op not in _SIZED_BY_USER}
    return len(by_program) > 1 or are_far_apart(n for op, n in sizes if op != "ALLGATHER")


def _finding(waits: Sequence[TimedOut], values: dict[int, object], what: str) -> Finding:
    odd = minority(values)
    others = tuple(sorted(r for r in values if r not in odd))
    by_rank = {x.rank: x for x in waits}
    if odd:
        title = f"{w.name_ranks(odd)} {w.verb(odd, 'was', 'were')} in {by_rank[odd[0]]}, {w.name_ranks(others)} in {by_rank[others[0]]}"
    else:
        title = "the ranks were in different calls: " + ", ".join(
            f"rank {r} in {by_rank[r]}" for r in sorted(values)[:4]
        )
    return Finding(
        rule=CallsDisagree.id,
        cause=CallsDisagree.cause,
        title=title,
        confidence=0.85 if odd else 0.75,
        culprit_ranks=odd,
        victim_ranks=others if odd else (),
        because=f"At the same position of the group the ranks made different calls ({what} differ): their programs had parted before it."
        + ("" if odd else " There is no majority, so it is not told which of them left the common path."),
        collective={"op": by_rank[others[0] if odd else min(values)].op, "seq": waits[0].seq},
        evidence=quote(lines_of(waits)),
        fixes=(EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT),
    )
