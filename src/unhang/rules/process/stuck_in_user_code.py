"""Rule: a rank sits in CPU code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import LateRank, Situation
from unhang.model import Finding, Fix, ProcessState
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules.base import Rule
from unhang.rules.collective.swallowed_exception import swallowed_by
from unhang.rules.late import describe
from unhang.rules.process.slow_rank0_work import works_alone

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 2, 3)}
_COMM = dict.fromkeys((0, 2, 3), "main:10>~comm")
_WORDS = {
    "lock": "waits for a lock or queue",
    "spinning": "runs in a loop without an end in sight",
    "gil": "runs in one call that holds the GIL",
    "user": "is in its own code",
}


class StuckInUserCode(Rule):
    """A rank sits in CPU code that is neither its loader nor rank-0 work.

    What it detects:
        The rank that its peers wait for waits for no rank itself: its stack is in a lock, a queue, an event, a sleep, or in code
        that burns a core.

    Why it hangs:
        The peers have issued the next collective and the rank has not come to it.

    How to confirm:
        The stack, and whether the process uses CPU (the finding says both).

    How to fix:
        Whatever keeps the line from going on: give the wait a timeout, release the lock, bound the loop.

    Sources:
        py-spy; /proc/PID/stat.
    """

    id = "rank-stuck-in-user-code"
    cause = "rank-stuck-in-user-code"
    needs = ("stacks",)
    EXAMPLES: ClassVar = (
        Fires(make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>load:33>~lock"}), (1,), 33),
        Fires(
            make_case(
                _WAIT, hang="suspected", stacks={**_COMM, 1: "main:8>spin:60"}, states={1: ProcessState("R", 1.0)}
            ),
            (1,),
            60,
        ),
        Quiet(
            make_case(_WAIT, hang="suspected", stacks={**_COMM, 1: "main:8"}, states={1: ProcessState("T")}),
            "a stopped process",
        ),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10"] for r in range(4)},
                hang="suspected",
                stacks=dict.fromkeys(range(4), "main:8"),
            ),
            "all ranks pause together: nobody waits",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per late rank whose stack is in its own code."""
        if s.divergence is not None or s.primary_failure is not None or not s.judges_waits:
            return
        for late in s.late:
            if late.edge.kind in ("rendezvous", "new_group") and late.rank not in s.case.ranks:
                continue
            if (
                late.activity.kind in _WORDS
                and not works_alone(s, late)
                and not swallowed_by(s, (late.rank,))
                and not _starts(late)
            ):
                yield describe(s, self, late, 0.88, _WORDS[late.activity.kind], _fixes(late))


def _starts(late: LateRank) -> bool:
    return late.edge.kind == "rendezvous"


def _fixes(late: LateRank) -> tuple[Fix, ...]:
    if late.activity.kind == "lock":
        patch = "give the wait a limit and raise when it is over: lock.acquire(timeout=60), queue.get(timeout=60), event.wait(60)"
    elif late.activity.kind in ("spinning", "gil"):
        patch = "bound the loop or the call; a regular expression with nested repeats can take exponential time on one input"
    else:
        patch = "give whatever this line waits for a limit, so that the rank raises instead of keeping its peers"
    return (
        Fix(
            "Bound the wait",
            patch=patch,
            verify="unhang run -- <the same command>: the rank raises or goes on",
            undo="revert the edit",
        ),
        Fix("A longer collective timeout only delays the end", setting="leave timeouts as they are", verify="-"),
    )
