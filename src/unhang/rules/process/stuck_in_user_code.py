"""Rule: a rank sits in CPU code."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import ClassVar

from unhang.analyze.pasted import doings_of
from unhang.analyze.situation import LateRank, Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent, ProcessState
from unhang.model.example import Fires, Quiet
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.collective.swallowed_exception import swallowed_by
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import first_exception
from unhang.rules.late import describe
from unhang.rules.line_rule import quote
from unhang.rules.process.slow_rank0_work import works_alone

_PASTED = """\
rank 0:
    all_gather (torch/distributed/distributed_c10d.py:3075)
    step (app/train.py:41)
rank 1:
    grade (app/reward.py:33)
    step (app/train.py:40)
"""
_LOST_ALARM = """\
Exception ignored in: <finalize object at 0xc02a81d4646d; dead>
Traceback (most recent call last):
  File "/opt/env/lib/python3.12/weakref.py", line 585, in __call__
    def __call__(self, _=None):
  File "/app/verify.py", line 43, in handler
    raise TimeoutError("Operation timed out!")
TimeoutError: Operation timed out!
[rank2]:[E ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=_ALLGATHER_BASE, NumelIn=192, NumelOut=576)
[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=_ALLGATHER_BASE, NumelIn=192, NumelOut=576)
"""
_MOST_LINES = 60
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
    EXAMPLES: ClassVar = (
        Fires(log_case(_PASTED), (1,), 33),
        Fires(log_case(_LOST_ALARM), (0,)),
        Quiet(
            log_case(_PASTED.replace("grade (app/reward.py", "all_reduce (torch/distributed/distributed_c10d.py")),
            "all in a collective",
        ),
        Quiet(log_case(_LOST_ALARM.split("[rank2]")[0]), "nothing hangs"),
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
        yield from _from_log(s)
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


def _from_log(s: Situation) -> Iterable[Finding]:
    """One finding where pasted stacks show named ranks in a collective and one elsewhere, or a guard against a hang was lost."""
    doings = doings_of(s)
    away = [d for d in doings if d.kind in ("lock", "user") and d.ranks and d.caller is not None]
    waiting = [d for d in doings if d.kind == "collective" and d.ranks]
    lost = _lost_alarm(s)
    if len({d.ranks for d in away}) == 1 and len(away) + len(waiting) == len(doings) and waiting:
        ranks, frame = away[0].ranks, away[0].caller
        evidence = tuple(
            EvidenceLine(f"{d.who} stack", " < ".join(map(str, d.frames[:4])), d.line.source.line)
            for d in (*away[:3], *waiting[:3])
        )
        confidence, what = 0.82, _WORDS[away[0].kind]
        because = f"{w.name_ranks(sorted({r for d in waiting for r in d.ranks}))} wait in a collective, to which {w.name_ranks(ranks)} did not come."
    elif lost and not doings:
        ranks, frame, evidence, confidence = _silent_rank(s), None, quote(lost), 0.62
        what = "is in code whose time limit was lost"
        because = (
            "An alarm raised TimeoutError inside a finalizer, where Python ignores exceptions: the code that it should have "
            "interrupted ran on, and the collective that comes after it timed out on the other ranks."
        )
    else:
        return
    yield Finding(
        rule=StuckInUserCode.id,
        cause=StuckInUserCode.cause,
        title=f"{w.name_ranks(ranks) if ranks else 'a rank'} {what}{f' at {w.place(frame)}' if frame else ''}",
        confidence=confidence,
        culprit_ranks=ranks,
        victim_ranks=s.others(ranks) if ranks else (),
        because=because,
        location=w.location_of(frame),
        evidence=evidence,
        fixes=_BOUND,
    )


def _lost_alarm(s: Situation) -> tuple[LogEvent, ...]:
    """An ignored TimeoutError, and the timeout of a collective after it."""
    told = s.events.of("python.error_line", "python.swallowed")
    pairs = [
        (a, b)
        for a, b in pairwise(told)
        if a.kind == "python.swallowed" and b["type"].endswith("TimeoutError") and b.order - a.order < _MOST_LINES
    ]
    hung = next((e for e in s.events if pairs and e.says == "hang" and e.order > pairs[0][1].order), None)
    return (*pairs[0], hung) if hung is not None and first_exception(s) is None else ()


def _silent_rank(s: Situation) -> tuple[int, ...]:
    """The one rank of the world whose watchdog said nothing, where the sizes of an all-gather tell the world."""
    waits = s.watchdogs.timed_out
    ratios = {
        t.numel_out // t.numel_in
        for t in waits
        if "ALLGATHER" in t.op and t.numel_in and t.numel_out and t.numel_out % t.numel_in == 0
    }
    silent = set(range(min(ratios, default=0))) - set(s.watchdogs.ranks)
    return tuple(silent) if len(ratios) == 1 and len(silent) == 1 else ()


def _starts(late: LateRank) -> bool:
    return late.edge.kind == "rendezvous"


_BOUND = (
    Fix(
        "Bound the wait",
        patch="give whatever this line waits for a limit of its own: a process with join(timeout), queue.get(timeout=60), lock.acquire("
        "timeout=60); an alarm of signal.SIGALRM is lost inside finalizers and C code",
        verify="unhang run -- <the same command>: the rank raises or goes on",
        undo="revert the edit",
    ),
    Fix(
        "Does not help: a longer collective timeout",
        setting="leave timeouts as they are: the rank does not come",
        verify="the same timeout, later",
        undo="nothing is changed",
    ),
)


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
