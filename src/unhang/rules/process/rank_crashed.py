"""Rule: a process was killed or crashed."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.failures import Failure
from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet, ended, make_case
from unhang.rules.base import Rule
from unhang.rules.failure import describe_failure

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"
_KERNEL_OOM = re.compile(r"oom[-_ ]?kill|Out of memory: Killed process|Memory cgroup out of memory", re.IGNORECASE)


def signal_name(code: int | None) -> str:
    """`SIGKILL` for -9."""
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"signal {-(code or 0)}"


def first_crash(s: Situation) -> Failure | None:
    """The first end by a signal, or without a word, that no exception or divergence explains."""
    if s.divergence is not None:
        return None
    for failure in s.failures:
        if failure.kind == "exception" and not failure.secondary:
            return None
        asked = failure.exit is not None and failure.exit.code in (-1, -2, -15)
        by_signal = failure.kind == "signal" and (not failure.secondary or (failure is s.failures[0] and not asked))
        if by_signal or failure.kind == "vanished":
            return failure
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
        The first rank to end was killed (SIGKILL, SIGSEGV, SIGBUS, SIGABRT without a mismatch), or vanished without a word.

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
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
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
        if failure is None or killed_for_memory(s, failure):
            return
        what = (
            f"was ended by {signal_name(failure.exit.code)}"
            if failure.kind == "signal" and failure.exit
            else "vanished without a word"
        )
        yield describe_failure(s, self, (failure,), 0.85, what, _fixes(failure))


class HostOutOfMemory(Rule):
    """The kernel killed a process for want of memory.

    What it detects:
        A rank ended by SIGKILL, and the kernel's counters or log name the OOM killer.

    Why it hangs:
        The rank is gone without a word; its peers wait or report a lost connection.

    How to confirm:
        `dmesg -T | grep -i oom`, `cat /sys/fs/cgroup/memory.events`.

    How to fix:
        Fewer loader workers, smaller prefetch, memory-mapped data, a larger memory limit of the job.

    Sources:
        Linux documentation, cgroup v2: memory.events.
    """

    id = "host-out-of-memory"
    cause = "host-oom"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {},
                errors={0: _ECHO},
                exits={2: ended("signal", -9, at_s=5)},
                hang=None,
                exit_code=1,
                log=["Out of memory: Killed process 4242 (python)"],
            ),
            (2,),
        ),
        Quiet(
            make_case({}, exits={2: ended("signal", -9, at_s=5)}, hang=None, exit_code=1),
            "a SIGKILL alone proves nothing",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the first crash was the kernel's."""
        failure = first_crash(s)
        if failure is not None and killed_for_memory(s, failure):
            yield describe_failure(s, self, (failure,), 0.93, "was killed by the kernel for want of memory", _OOM_FIXES)


_OOM_FIXES = (
    Fix(
        "Use less host memory",
        patch="fewer workers (num_workers), smaller prefetch_factor, memory-mapped data",
        verify="RSS of ranks and workers over time",
        undo="revert the edit",
    ),
    Fix(
        "Give the job more",
        setting="the scheduler's memory limit (Slurm --mem, Kubernetes resources.limits.memory)",
        verify="memory.events: oom_kill stays 0",
        undo="restore the limit",
    ),
)


def _fixes(failure: Failure) -> tuple[Fix, ...]:
    return (
        Fix(
            "Find out who sent the signal",
            command="dmesg -T | tail -50",
            verify="the kernel or the scheduler names the process",
            undo="nothing is changed",
        ),
    )
