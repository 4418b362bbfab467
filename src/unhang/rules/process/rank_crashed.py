"""Rule: a process was killed or crashed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.failures import Failure
from unhang.analyze.first_errors import errors_of, is_log_only
from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, LogEvent, ProcessExit
from unhang.model.example import Fires, Quiet, ended
from unhang.rules import wording as w
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import WORKER_DIED, describe_failure, first_exception, is_read_from_log
from unhang.rules.line_rule import quote
from unhang.rules.process.rank_exited_early import left_before

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"
_KERNEL_OOM = re.compile(r"oom[-_ ]?kill|Out of memory: Killed process|Memory cgroup out of memory", re.IGNORECASE)
# Signals that say what went wrong in the process itself; SIGABRT is how gloo and the watchdog end a process, too.
_OF_ITS_OWN = (-4, -8, -11)
_LINES = (
    "python.fatal",
    "ending.fatal_signal",
    "ending.lightning_child",
    "loader.worker_killed",
    "loader.worker_exited",
    "ending.ray_worker",
    "ending.deepspeed",
    "ending.called_process",
)
_CRASH_CODES = ("-4", "-8", "-9", "-11", "132", "136", "137", "139")
_CRASH_SIGNALS = ("SIGSEGV", "SIGILL", "SIGFPE", "SIGKILL")
_LOG = """\
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:16786
Process 2 terminated with exit code 10, terminating remaining processes.
"""
_SEGFAULT = """\
step 10, loss 0.4
[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -11) local_rank: 3 (pid: 711) of binary: /usr/bin/python
"""
_ABORTED = """\
[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 1 (pid: 711) of binary: /usr/bin/python
"""


def signal_name(code: int | None) -> str:
    """`SIGKILL` for -9."""
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"signal {-(code or 0)}"


def first_crash(s: Situation) -> Failure | None:
    """The first end by a signal, or without a word, that no exception or divergence explains."""
    if s.divergence is not None or s.told_to_end is not None:
        return None
    for failure in s.failures:
        if failure.kind == "exception" and not failure.secondary:
            return None
        asked = failure.exit is not None and failure.exit.code in (-1, -2, -15)
        by_signal = failure.kind == "signal" and (not failure.secondary or (failure is s.failures[0] and not asked))
        if by_signal or (failure.kind == "vanished" and not failure.secondary):
            return None if left_before(s, failure) else failure
    return None


def killed_for_memory(s: Situation, failure: Failure) -> bool:
    """Whether the kernel says that it killed for want of memory."""
    evidence = s.case.ranks.get(failure.rank)
    counted = bool(evidence and evidence.state and evidence.state.oom_kills)
    return bool(failure.exit and failure.exit.code == -9) and (
        counted or any(_KERNEL_OOM.search(x.text) for x in s.case.log)
    )


class RankCrashed(Rule):
    """A process was ended by a signal, and nothing tells why.

    What it detects:
        The first rank to end was killed (SIGKILL, SIGSEGV, SIGBUS, SIGABRT without a mismatch), or vanished without a word. In a
        log: a launcher names the signal or an odd exit code, a loader's worker died, and no exception comes before it.

    Why it hangs:
        Its peers lose it in the middle of a collective.

    How to confirm:
        The kernel log (`dmesg -T`), the scheduler's record of the job, a core dump; the stack at the signal, if it was written.

    How to fix:
        Depends on who sent the signal; the finding does not guess.

    Sources:
        signal(7).
    """

    id = "rank-crashed"
    cause = "rank-crashed-earlier"
    EXAMPLES: ClassVar = (
        Fires(log_case(_LOG), (2,)),
        Fires(log_case(_SEGFAULT), (3,)),
        Quiet(log_case(_ABORTED), "the watchdog aborts a process that has waited too long"),
        Quiet(log_case("ValueError: x\n" + _SEGFAULT), "an exception that comes before"),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={2: ended("signal", -9, at_s=5), 3: ended("signal", -15, at_s=11)},
                hang=None,
                exit_code=1,
            ),
            (2,),
        ),
        Fires(
            make_case(
                {},
                errors={0: _ECHO, 1: _ECHO},
                exits={2: ended("signal", -9, at_s=10.3)},
                hang=None,
                exit_code=137,
            ),
            (2,),
        ),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={0: ended("signal", -15, at_s=10.6), 1: ended("signal", -11, at_s=10.3)},
                hang=None,
                exit_code=139,
            ),
            (1,),
        ),
        Quiet(
            make_case(
                {},
                errors={0: _ECHO},
                exits={r: ended("signal", -9, at_s=10.3) for r in (1, 2, 3)},
                hang=None,
                exit_code=137,
            ),
            "a launcher that kills everybody when one rank has lost its connection",
        ),
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={0: ended("os._exit", 1, at_s=10.5), 3: ended("vanished", None, at_s=10.2)},
                hang=None,
                exit_code=1,
            ),
            (3,),
        ),
        Quiet(
            make_case(
                {},
                errors={0: _ECHO, 1: _ECHO},
                exits={0: ended("os._exit", 1, at_s=10.1), 3: ended("vanished", None, at_s=10.6)},
                hang=None,
                exit_code=1,
            ),
            "gone unseen after another rank had ended: the launcher ends them all",
        ),
        Quiet(
            make_case(
                {}, exits={r: ended("signal", -15, at_s=100 + r * 0.001) for r in range(4)}, hang=None, exit_code=143
            ),
            "a scheduler that ends the whole job",
        ),
        Quiet(
            make_case(
                {}, errors={1: "ValueError: x@main:3"}, exits={2: ended("signal", -15, at_s=12)}, hang=None, exit_code=1
            ),
            "the launcher's SIGTERM",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the first crash."""
        failure = first_crash(s)
        if failure is None or is_read_from_log(failure):
            yield from self._from_log(s)
            return
        if killed_for_memory(s, failure):
            return
        what = (
            f"was ended by {signal_name(failure.exit.code)}"
            if failure.kind == "signal" and failure.exit
            else "vanished without a word"
        )
        yield describe_failure(s, self, (failure,), 0.85, what, _fixes(failure))

    def _from_log(self, s: Situation) -> Iterable[Finding]:
        """One finding where a launcher or the process itself says how it ended, and no exception tells why."""
        if not is_log_only(s):
            return
        first = first_exception(s)
        if s.events.has("oom.", "shm.", "cuda.", "nccl.cuda_oom") or (first and not WORKER_DIED.search(first.text)):
            return
        rank, end = _crashed(s)
        lines = [e for e in s.events.of(*_LINES) if _is_crash(e)]
        if end is None and not lines:
            return
        ranks = (rank,) if rank is not None else tuple(sorted({e.rank for e in lines if e.rank is not None}))
        who = w.name_ranks(ranks) if ranks else "a process"
        how = "crashed" if end is None else _how(end)
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"{who} {how}; why is not in the log",
            confidence=0.8 if end is not None and (end.code or 0) in _OF_ITS_OWN else 0.65,
            culprit_ranks=ranks,
            victim_ranks=s.others(ranks) if ranks else (),
            because="No exception comes before it; what the other ranks report of lost peers and timeouts is its echo.",
            evidence=(
                *(
                    [EvidenceLine(f"rank {rank} exit", f"code {end.code}, seen by the launcher")]
                    if end is not None
                    else ()
                ),
                *quote(lines or s.events.of("ending.")),
            ),
            fixes=_fixes(None),
        )


def _is_crash(event: LogEvent) -> bool:
    """Whether a line tells of a process that ended by a fault of its own, or by a SIGKILL of which nothing else is known.

    Bus errors are left to the rule on shared memory.
    """
    if event.kind in ("ending.deepspeed", "ending.called_process", "ending.lightning_child"):
        return event["code"] in _CRASH_CODES or event["signal"] in _CRASH_SIGNALS
    return event["signal"] not in ("Killed", "Bus error", "Terminated")


def _how(end: ProcessExit) -> str:
    by_signal = (end.code or 0) < 0
    return f"was ended by {signal_name(end.code)}" if by_signal else f"ended with exit code {end.code}"


def _crashed(s: Situation) -> tuple[int | None, ProcessExit | None]:
    """The rank that a launcher saw end first by a signal of its own or an exit code that Python's exceptions do not give."""
    ends = sorted(
        ((e.exit.time_ns, rank, e.exit) for rank, e in s.case.ranks.items() if e.exit and e.error is None),
        key=lambda end: (end[0], end[1]),
    )
    by_signal = [(rank, end) for _, rank, end in ends if end.code in _OF_ITS_OWN]
    if by_signal:
        return by_signal[0]
    killed = [(rank, end) for _, rank, end in ends if end.code == -9]
    if len(killed) == 1 and killed[0][1] is ends[0][2]:
        return killed[0]
    own = [(rank, end) for _, rank, end in ends if (end.code or 0) > 1]
    echoes = any(e.kind == "echo" for e in errors_of(s))
    return own[0] if len(own) == 1 and echoes else (None, None)


def _fixes(failure: Failure | None) -> tuple[Fix, ...]:
    return (
        Fix(
            "Find out who sent the signal",
            command="dmesg -T | tail -50",
            verify="the kernel or the scheduler names the process",
            undo="nothing is changed",
        ),
    )
