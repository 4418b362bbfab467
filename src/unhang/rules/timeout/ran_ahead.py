"""Rule: a rank has left behind a call that another rank still waits in, and that nobody can leave alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.analyze.watchdog import TimedOut, lines_of, minority
from unhang.model import Finding
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case
from unhang.rules.line_rule import quote
from unhang.rules.timeout.advice import EVERY_RANK_CALLS, NO_LONGER_TIMEOUT, SEE_IT
from unhang.rules.timeout.calls_disagree import timeouts
from unhang.rules.timeout.rank_lags import counted

# Nobody completes these before every member has brought its part.
_TOGETHER = frozenset(
    {"ALLREDUCE", "ALLREDUCE_COALESCED", "ALLGATHER", "_ALLGATHER_BASE", "BARRIER", "_REDUCE_SCATTER_BASE"}
)
_APART = timeouts((0, 1516, "ALLREDUCE", 25427968), (1, 1517, "ALLREDUCE", 1))


class RanAhead(Rule):
    """One rank waits in the last call that it issued, which another rank has completed and left behind.

    What it detects:
        Timeouts at different positions of a group, in calls that nobody completes alone; the rank that is behind has issued
        nothing after its call ("last enqueued" is the call itself), and the calls are not the same one.

    Why it hangs:
        What the rank that is ahead completed was another call than the one in which the other rank waits: one of them made a
        call more or less, and each waits for the other in a call that does not match.

    How to confirm:
        The recorded calls of both ranks: the last position at which they agree. If they agree everywhere, the end of the call
        was lost on the way: look at the transport.

    How to fix:
        Take the decision before that call once for all ranks, or make the call on every rank.

    Sources:
        ProcessGroupNCCL.cpp: the counters are kept per process group.
    """

    id = "ran-ahead"
    cause = "code-divergence"
    EXAMPLES: ClassVar = (
        Fires(log_case(_APART + "\n" + counted((0, 1516, 1515))), ()),
        Quiet(log_case(_APART + "\n" + counted((0, 1530, 1515))), "its program ran on: the call may only be late"),
        Quiet(log_case(_APART), "what else was issued is not told"),
        Quiet(
            log_case(timeouts((0, 16, "BROADCAST", 9), (1, 17, "ALLREDUCE", 1)) + "\n" + counted((0, 16, 15))),
            "the root of a broadcast may go on",
        ),
        Quiet(
            log_case(timeouts((0, 16, "ALLREDUCE", 9), (1, 17, "ALLREDUCE", 9)) + "\n" + counted((0, 16, 15))),
            "the same call, counted from elsewhere",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first pair of ranks."""
        firsts = tuple({x.rank: x for x in reversed(s.watchdogs.timed_out) if x.rank is not None}.values())[::-1]
        if len({x.group for x in firsts if x.group}) > 1 or s.watchdogs.has_subgroups or s.watchdogs.lagging[0]:
            return
        for behind in firsts:
            ahead = next((x for x in firsts if _has_left(x, behind)), None)
            if ahead is not None:
                yield _finding(s, firsts, behind, ahead)
                return


def _has_left(ahead: TimedOut, behind: TimedOut) -> bool:
    if behind.seq is None or ahead.seq is None or not behind.keeps_cpu or {ahead.op, behind.op} - _TOGETHER:
        return False
    return ahead.seq > behind.seq and (ahead.op, ahead.numel_in) != (behind.op, behind.numel_in)


def _finding(s: Situation, waits: Sequence[TimedOut], behind: TimedOut, ahead: TimedOut) -> Finding:
    odd = minority({x.rank: (x.seq, x.op, x.numel_in) for x in waits if x.rank is not None})
    return Finding(
        rule=RanAhead.id,
        cause=RanAhead.cause,
        title=f"rank {behind.rank} waits in {behind}, its last call; rank {ahead.rank} is at {ahead} already",
        confidence=0.65,
        culprit_ranks=odd,
        victim_ranks=s.others(odd) if odd else (),
        because=f"Nobody completes a call of this kind alone, so what rank {ahead.rank} completed at that position was another call: the programs had parted. "
        "If the recorded calls agree, the end of the call was lost on the way.",
        collective={"op": behind.op, "seq": behind.seq},
        evidence=quote(lines_of(waits)),
        fixes=(EVERY_RANK_CALLS, SEE_IT, NO_LONGER_TIMEOUT),
    )
