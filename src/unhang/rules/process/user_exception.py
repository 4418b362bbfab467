"""Rule: the first failure is a Python exception."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from unhang.analyze.callpath import user_path
from unhang.analyze.first_errors import has_fatal_end, is_log_only
from unhang.analyze.laggards import behind_in_steps
from unhang.analyze.overtaking import LeftOut, left_out_before
from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.read.logs.patterns import matches
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import (
    SPECIAL,
    FirstException,
    comes_late,
    describe_first,
    first_exception,
    is_file_race,
    is_missing_file,
)
from unhang.rules.line_rule import quote

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"
_LOG = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/app/train.py", line 88, in <module>
[rank2]:     train()
[rank2]:   File "/app/train.py", line 41, in collate
[rank2]:     raise ValueError("empty batch")
[rank2]: ValueError: empty batch
[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE)
"""
_STEPS = """\
step 177, loss 0.1, cuda:0 7.4GB
step 177, loss 0.1, cuda:1 7.4GB
step 177, loss 0.2, cuda:2 7.4GB
step 178, loss 0.2, cuda:2 7.4GB
step 178, loss 0.2, cuda:0 7.4GB
Unhandled exception <class 'ValueError'> in thread <_MainThread(MainThread)>
"""
_HANDLED = """\
Traceback (most recent call last):
  File "/app/data.py", line 12, in load
    raise ValueError("bad image")
ValueError: bad image
step 10, loss 0.5
step 11, loss 0.4
step 12, loss 0.4
step 13, loss 0.3
"""
_DRIVER = """\
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
# Families whose lines say that something failed, but not what; all others name a cause that has a rule of its own.
_GENERIC = (
    "python.",
    "progress.",
    "work.",
    "learn.",
    "ending.",
    "elastic.",
    "launchers.",
    "watchdog.",
    "loader.worker_error",
    "ddp.ready_twice",
    "ddp.static_graph",
    "shm.errno_28",  # a full disk as well
)


class UserException(Rule):
    """The first failure of the job is a Python exception of one rank.

    What it detects:
        The earliest uncaught exception that is not itself about a lost peer or a timeout, and that no other rule explains. In a
        log: by its traceback, by its last line alone, or by the note of an unhandled exception. An exception after which the same
        rank went on with its steps was handled, and is none.

    Why it hangs:
        With NCCL the peers of a dead rank wait until the watchdog's timeout; with gloo they fail at once with "Connection closed
        by peer". Both are echoes; the launcher often names one of them as the root cause.

    How to confirm:
        The traceback of that rank, with its time.

    How to fix:
        The exception itself. `@record` on the main function keeps it in torchrun's summary. A longer timeout changes nothing.

    Sources:
        torch/distributed/elastic/multiprocessing/errors.
    """

    id = "user-exception"
    cause = "user-exception"
    EXAMPLES: ClassVar = (
        Fires(
            make_case({}, errors={1: "ValueError: corrupt@main:9>load:31", 0: _ECHO, 2: _ECHO}, hang=None, exit_code=1),
            (1,),
            31,
        ),
        Fires(log_case(_LOG), (2,), 41),
        Fires(log_case(_STEPS), (1,)),
        Quiet(make_case({}, errors={0: _ECHO, 2: _ECHO}, hang=None, exit_code=1), "lost peers are echoes"),
        Quiet(make_case({r: ["all_reduce[8]@main:10"] for r in range(4)}, hang=None, exit_code=0), "no failure"),
        Quiet(log_case(_HANDLED), "an exception that was handled: the steps went on"),
        Quiet(log_case(_DRIVER), "what the launcher raises because a rank failed"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the primary exception, unless a more specific rule names it."""
        first = first_exception(s)
        if first is None:
            yield from self._unhandled(s)
            return
        if any(p.search(first.text) for p in SPECIAL) or is_file_race(s, first):
            return
        confidence = 0.95 if first.failures else _confidence(s, first)
        if comes_late(s, first):
            confidence *= 0.75
        if confidence >= 0.5:
            found = describe_first(s, self, first, confidence, f"raised {first.error.type}: {first.head}", _FIXES)
            left_out = _left_out(s, first)
            yield _consequence_of(s, found, first, left_out) if left_out else found

    def _unhandled(self, s: Situation) -> Iterable[Finding]:
        """The note of an unhandled exception, whose traceback is not in the log: the rank is told by the steps."""
        noted = [e for e in s.events.of("python.unhandled") if not any(p.search(e.text) for p in SPECIAL)]
        if not noted or s.primary_failure is not None:
            return
        behind = behind_in_steps(s, before=noted[0].order)
        ranks = (noted[0].rank,) if noted[0].rank is not None else (behind.rank,) if behind else ()
        who = w.name_ranks(ranks) if ranks else "a rank"
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{who} raised {noted[0]['type'] or 'an exception'} that nobody handled",
            confidence=0.75 if ranks else 0.6,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because=f"{behind.told} before the exception."
            if behind and noted[0].rank is None
            else "The log says so; it does not hold the traceback.",
            evidence=quote([*(behind.events if behind else ()), *noted]),
            fixes=_FIXES,
        )


def _left_out(s: Situation, first: FirstException) -> LeftOut | None:
    """The collective that the one rank with an exception had left out before."""
    if len(first.failures) != 1 or len(first.ranks) != 1:
        return None
    return left_out_before(s.case, s.stuck, first.ranks[0], user_path(first.error.frames))


def _consequence_of(s: Situation, found: Finding, first: FirstException, left_out: LeftOut) -> Finding:
    """The finding on an exception of a rank that had left its peers before it raised."""
    call, where = left_out.call, w.place(left_out.passed)
    who = w.name_ranks(found.culprit_ranks)
    what = f"{call.op.split(':')[-1]} #{call.seq} of {call.group}"
    line = next(reversed(user_path(call.frames)), left_out.passed)
    return replace(
        found,
        cause="code-divergence",
        confidence=min(found.confidence, 0.85),
        title=f"{who} left out {what} at {w.place(line)} and went on, until it raised {first.error.type}: {first.head}",
        because=f"{w.name_ranks(left_out.waiting)} waited in that call, at {where} in the function of both. {who} made the call before it, and "
        "stood behind that line in the same round when it failed: what it failed with may be what the call would have given. "
        + found.because,
        process_group=w.group_of(call.group),
        collective=w.collective_of(call, call.seq),
        location=w.location_of(line),
        fixes=(
            Fix(
                "Let all ranks make the call, or none",
                patch=f"{line.file}:{line.line}: decide together whether this line runs: all-reduce the condition first (ReduceOp.MAX)",
                verify="unhang run -- <the same command>: all ranks pass this line",
                undo="revert the edit",
            ),
            *found.fixes,
        ),
    )


def _confidence(s: Situation, first: FirstException) -> float:
    """How far the exception is what went wrong: nothing where its text has a rule of its own, less where it is only a line."""
    if is_log_only(s) and _is_explained(first.text):
        return 0.0
    if is_missing_file(first):
        return 0.6
    if first.error.frames:
        return 0.93 if first.ranks else 0.85
    return 0.75 if has_fatal_end(s) else 0.65


def _is_explained(text: str) -> bool:
    """Whether a part of the message is a line that has a rule of its own."""
    lines = text.splitlines()[:8]
    return any(not p.kind.startswith(_GENERIC) for line in lines for p, _ in matches(line))


_FIXES = (
    Fix(
        "Mend what raised; do not catch it on one rank",
        patch="catching the exception and going on makes the rank skip collectives: the peers then hang",
        verify="unhang run -- <the same command>: outcome clean",
        undo="revert the edit",
    ),
    Fix(
        "Does not help: a longer timeout",
        setting="leave the timeout of the process group as it is: the rank is gone, its peers only wait longer",
        verify="the same exception comes again",
        undo="nothing is changed",
    ),
)
