"""Rule: a process is stopped or cannot be scheduled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import EvidenceLine, Finding, Fix, ProcessState
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import make_case
from unhang.rules.late import describe

_WAIT = {r: ["all_reduce[8]@main:10 !"] for r in (0, 1, 2)}
_COMM = dict.fromkeys((0, 1, 2), "main:10>~comm")


class RankFrozen(Rule):
    """The process of a rank is stopped, or sits in the kernel.

    What it detects:
        The rank that its peers wait for is in state T (stopped) or D (uninterruptible) of the kernel.

    Why it hangs:
        It cannot run: somebody sent SIGSTOP, its cgroup is frozen, or a file system or driver does not answer. The programs of
        the ranks agree.

    How to confirm:
        `cat /proc/PID/status`; for state D also `/proc/PID/wchan` and the kernel log.

    How to fix:
        `kill -CONT PID` for a stopped process; for state D the file system or driver that the kernel waits for.

    Sources:
        proc(5).
    """

    id = "rank-frozen"
    cause = "rank-frozen"
    needs = ("states",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                _WAIT, hang="suspected", stacks={**_COMM, 3: "main:10>hook:4"}, states={3: ProcessState("T", 0.0)}
            ),
            (3,),
            4,
        ),
        Quiet(
            make_case(
                _WAIT, hang="suspected", stacks={**_COMM, 3: "main:10>hook:4"}, states={3: ProcessState("S", 0.0)}
            ),
            "asleep is not frozen",
        ),
        Quiet(
            make_case(
                {r: ["all_reduce[8]@main:10"] for r in range(4)},
                hang=None,
                states={r: ProcessState("T") for r in range(4)},
            ),
            "the user stopped the whole job (Ctrl-Z)",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding per late rank that is frozen."""
        for late in s.late if s.judges_waits else ():
            if late.activity.kind == "frozen":
                evidence = s.case.ranks[late.rank]
                pid, state = evidence.identity.pid, evidence.state
                line = EvidenceLine(
                    f"rank {late.rank} /proc",
                    f"pid {pid} state {state.state if state else '?'} {state.wchan if state else ''}".strip(),
                )
                yield describe(s, self, late, 0.97, "is frozen", _fixes(pid), (line,))


def _fixes(pid: int | None) -> tuple[Fix, ...]:
    return (
        Fix(
            "Let it run again",
            command=f"kill -CONT {pid}",
            verify=f"the State line of /proc/{pid}/status is no longer T",
            undo=f"kill -STOP {pid}",
        ),
        Fix(
            "Find out who stopped it",
            command="dmesg | tail; cat /sys/fs/cgroup/**/cgroup.freeze",
            verify="-",
            undo="nothing is changed",
        ),
    )
