"""Rule: too many open files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules.base import Rule
from unhang.rules.failure import FD_EXHAUSTED, describe_failure, same_failures, text_of


class FdExhaustion(Rule):
    """A rank or its loader workers ran out of file descriptors.

    What it detects:
        The first failure of the job says "Too many open files".

    Why it hangs:
        The loader of that rank dies; its peers wait in the next collective.

    How to confirm:
        `ls /proc/PID/fd | wc -l` against `ulimit -n`.

    How to fix:
        Raise the soft limit; share tensors through the file system instead of descriptors; fewer workers.

    Sources:
        PyTorch documentation, multiprocessing: sharing strategies.
    """

    id = "fd-exhaustion"
    cause = "fd-exhaustion"
    needs = ("ranks",)
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
        Quiet(
            make_case({}, errors={1: "OSError: No space left on device@main:12"}, hang=None, exit_code=1),
            "another limit",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if the primary failure is EMFILE."""
        first = s.primary_failure
        if first is not None and FD_EXHAUSTED.search(text_of(first)):
            yield describe_failure(s, self, same_failures(s, first), 0.95, "ran out of file descriptors", _FIXES)


_FIXES = (
    Fix("Raise the soft limit", command="ulimit -n 65536", verify="ulimit -n", undo="ulimit -n 1024"),
    Fix(
        "Share tensors without descriptors",
        patch='torch.multiprocessing.set_sharing_strategy("file_system")',
        verify="ls /proc/PID/fd | wc -l stays flat",
        undo='set_sharing_strategy("file_descriptor")',
    ),
)
