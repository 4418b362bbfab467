"""Rule: too many open files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix, LogEvent
from unhang.model.example import Fires, Quiet
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import FD_EXHAUSTED, describe_failure, same_failures, text_of
from unhang.rules.line_rule import LineRule
from unhang.rules.network.died_first import in_trouble


class FdExhaustion(LineRule):
    """A rank, its loader workers or NCCL ran out of file descriptors.

    What it detects:
        The first failure of the job says "Too many open files", or NCCL, the store or a worker prints it.

    Why it hangs:
        The loader of that rank dies, or its connections cannot be accepted; its peers wait.

    How to confirm:
        `ls /proc/PID/fd | wc -l` against `ulimit -n` of the process (`grep 'open files' /proc/PID/limits`).

    How to fix:
        Raise the soft limit where the ranks are started; share tensors through the file system instead of descriptors; fewer
        workers; communicators that are destroyed.

    Sources:
        PyTorch documentation, multiprocessing: sharing strategies.
    """

    id = "fd-exhaustion"
    cause = "fd-exhaustion"
    kinds: ClassVar = ("fabric.too_many_files",)
    confidence: ClassVar = 0.95
    headline: ClassVar = "a process ran out of file descriptors"
    reason: ClassVar = (
        "The line names the limit. At start NCCL opens a connection for each channel and peer, so that a soft limit of 1024 that is "
        "enough on one node is not on several. Closed connections of other ranks follow from it."
    )
    EXAMPLES: ClassVar = (
        Fires(
            make_case(
                {},
                errors={1: "RuntimeError: unable to open shared memory object: Too many open files (24)@main:12"},
                hang=None,
                exit_code=1,
            ),
            (1,),
            12,
        ),
        Fires(
            log_case(
                "node-a:3:4 [0] os/linux.cc:90 NCCL WARN ncclOsSocketTryAccept: Accept failed: Too many open files\n"
            ),
            (),
        ),
        Quiet(
            make_case({}, errors={1: "OSError: No space left on device@main:12"}, hang=None, exit_code=1),
            "another limit",
        ),
        Quiet(
            log_case(
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "train.py", line 9, in <module>\n'
                "[rank1]: ValueError: corrupt\nOSError: [Errno 24] Too many open files\n"
            ),
            "another failure came first",
        ),
        Quiet(log_case("wandb: Too many open files, retrying\nepoch 3 loss 0.2\n"), "a program that could go on"),
    )

    def evidence(self, s: Situation) -> Sequence[LogEvent]:
        """Lines of what failed for it; of a program that merely mentions it only in a job that failed."""
        found = s.events.of(*self.kinds)
        return found if in_trouble(s) or any(e["failed"] for e in found) else ()

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the primary failure is EMFILE, or a line says so and no failure of another kind came first."""
        first = s.primary_failure
        if first is not None:
            if FD_EXHAUSTED.search(text_of(first)):
                yield describe_failure(s, self, same_failures(s, first), 0.95, "ran out of file descriptors", _FIXES)
            return
        yield from super().check(s)

    def advice(self, s: Situation, events: Sequence[LogEvent]) -> tuple[Fix, ...]:
        """What to change."""
        return _FIXES


_FIXES = (
    Fix(
        "Raise the soft limit where the ranks are started",
        command='ulimit -n "$(ulimit -Hn)"',
        verify="`ulimit -n` printed by the launched process",
        undo="ulimit -n 1024",
    ),
    Fix(
        "Share tensors without descriptors",
        patch='torch.multiprocessing.set_sharing_strategy("file_system")',
        verify="ls /proc/PID/fd | wc -l stays flat",
        undo='set_sharing_strategy("file_descriptor")',
    ),
)
