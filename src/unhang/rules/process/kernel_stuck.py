"""Rule: the kernel reports processes that cannot go on: disks, file servers, cores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, Reading
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.process.forecast import ago
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of, ranks_of

_HOUR_S = 3600.0
_KINDS = {
    "kernel.server_lost": "a file server does not answer",
    "kernel.disk_error": "errors of a disk",
    "kernel.hung_task": "a process was stuck in the kernel",
    "kernel.lockup": "a core was stuck in the kernel",
}


class KernelStuck(ReadingRule):
    """The kernel has reported tasks, cores, disks or file servers that did not answer.

    What it detects:
        A file server that is lost and has not come back, errors of a disk in the last day; within the last hour tasks that were
        blocked for minutes and cores that were locked up.

    Why it hangs:
        A rank that reads or writes there waits in the kernel and cannot be ended; its peers wait for it.

    How to confirm:
        `dmesg -T | tail -50`; `ps -eo pid,stat,wchan:30,args | grep ' D'`.

    How to fix:
        Bring the server or the disk back, restart the node, or leave it out.

    Sources:
        Documentation/admin-guide/lockup-watchdogs.rst of the kernel; nfs(5).
    """

    id = "kernel-stuck"
    cause = "rank-frozen"
    reads = ("machine.kernel_log",)
    EXAMPLES: ClassVar = (
        Fires(
            readings_case(
                read("machine.kernel_log", rank=2, messages=90),
                read(
                    "machine.kernel kernel.server_lost", rank=2, name="10.0.0.9", count=4, age_s=900, text="nfs: server"
                ),
            ),
            (2,),
        ),
        Fires(
            readings_case(
                read("machine.kernel_log", messages=90),
                read(
                    "machine.kernel kernel.disk_error",
                    name="nvme0n1",
                    count=4,
                    age_s=9000,
                    text="I/O error, dev nvme0n1",
                ),
            ),
            (0,),
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.server_lost", name="10.0.0.9", count=4, age_s=900, text="nfs: server"),
                read("machine.kernel kernel.server_back", name="10.0.0.9", count=4, age_s=890, text="nfs: server"),
            ),
            "the server came back",
        ),
        Quiet(
            readings_case(
                read("machine.kernel_log", messages=90),
                read("machine.kernel kernel.lockup", count=1, age_s=40000, text="soft lockup"),
            ),
            "a virtual machine that was paused in the night",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding for all hosts with the same trouble."""
        back = {
            (r.host, r.text("name")): r.number("age_s") or 0.0
            for r in s.readings.of("machine.kernel", subject="kernel.server_back")
        }
        for kind, what in _KINDS.items():
            told = [r for r in s.readings.of("machine.kernel", subject=kind) if _counts(r, back)]
            if not told:
                continue
            last = min(told, key=lambda r: r.number("age_s") or 0)
            name = f" ({last['name']})" if last["name"] else ""
            yield Finding(
                rule=self.id,
                cause=self.cause,
                title=f"{what}{name} on {hosts_of(told)}, {ago(last.number('age_s') or 0)}",
                confidence=0.85 if kind == "kernel.server_lost" else 0.75,
                culprit_ranks=ranks_of(told),
                because="The kernel says so itself. A rank that needs it waits where no signal reaches it.",
                evidence=cite(told),
                fixes=(
                    Fix(
                        "Look at what the kernel says, and leave the node out until it is mended",
                        command="dmesg -T --level=emerg,alert,crit,err,warn | tail -50",
                        verify="no new message while the folder or disk is read",
                        undo="take the node in again",
                    ),
                ),
            )


def _counts(reading: Reading, back: dict[tuple[str, str], float]) -> bool:
    """Whether it still matters: servers that came back do not, nor do hours that are over."""
    age_s = reading.number("age_s") or 0.0
    if reading.subject == "kernel.server_lost":
        return back.get((reading.host, reading.text("name")), float("inf")) > age_s
    return reading.subject == "kernel.disk_error" or age_s < _HOUR_S
