"""Rule: stacks of a stuck rank cannot be taken from outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.model.example_readings import read, readings_case
from unhang.rules.reading_rule import ReadingRule, cite, hosts_of

_WITH_CAPABILITY_ONLY = 2


class NoTracing(ReadingRule):
    """Nothing on this machine may look into another process, which is how the stack of a stuck rank is taken.

    What it detects:
        An attempt to trace a child of our own is refused, or Yama allows it to CAP_SYS_PTRACE only.

    Why it hangs:
        It does not; but when a job hangs, what each rank does is known less exactly.

    How to confirm:
        `cat /proc/sys/kernel/yama/ptrace_scope`; `py-spy dump --pid PID`.

    How to fix:
        `--cap-add SYS_PTRACE` for the container; ptrace_scope 1 or 0.

    Sources:
        ptrace(2), access mode checking; Documentation/admin-guide/LSM/Yama.rst of the kernel.
    """

    id = "no-tracing"
    cause = "unknown"
    reads = ("machine.tracing",)
    EXAMPLES: ClassVar = (
        Fires(readings_case(read("machine.tracing", scope=3, problem="Operation not permitted")), ()),
        Quiet(readings_case(read("machine.tracing", scope=1, has_capability=False, problem="")), "the usual setting"),
        Quiet(readings_case(read("machine.tracing", scope=2, has_capability=True, problem="")), "root may"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """A note for all hosts together."""
        blind = [
            r
            for r in s.readings.of("machine.tracing")
            if r.text("problem") or ((r.number("scope") or 0) >= _WITH_CAPABILITY_ONLY and not r["has_capability"])
        ]
        if not blind:
            return
        yield Finding(
            rule=self.id,
            cause=self.cause,
            title=f"stacks of a stuck rank cannot be taken from outside on {hosts_of(blind)}",
            confidence=0.5,
            culprit_ranks=(),
            because="The kernel refuses to let one process look into another. A job under `unhang run` writes its own Python "
            "stacks instead; native frames will be missing.",
            evidence=cite(blind),
            fixes=(
                Fix(
                    "Allow it",
                    setting="docker run --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]; "
                    "sysctl kernel.yama.ptrace_scope=1",
                    verify="unhang check has no note of stacks",
                    undo="remove the capability",
                ),
            ),
        )
