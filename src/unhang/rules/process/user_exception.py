"""Rule: the first failure is a Python exception."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules.base import Rule
from unhang.rules.failure import SPECIAL, describe_failure, is_file_race, same_failures, text_of

_ECHO = "RuntimeError: Connection closed by peer [127.0.0.1]:4242@main:10"


class UserException(Rule):
    """The first failure of the job is a Python exception of one rank.

    What it detects:
        The earliest uncaught exception that is not itself about a lost peer or a timeout.

    Why it hangs:
        With NCCL the peers of a dead rank wait until the watchdog's timeout; with gloo they fail at once with "Connection closed
        by peer". Both are echoes; the launcher often names one of them as the root cause.

    How to confirm:
        The traceback of that rank, with its time.

    How to fix:
        The exception itself. `@record` on the main function keeps it in torchrun's summary.

    Sources:
        torch/distributed/elastic/multiprocessing/errors.
    """

    id = "user-exception"
    cause = "user-exception"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(
            make_case({}, errors={1: "ValueError: corrupt@main:9>load:31", 0: _ECHO, 2: _ECHO}, hang=None, exit_code=1),
            (1,),
            31,
        ),
        Quiet(make_case({}, errors={0: _ECHO, 2: _ECHO}, hang=None, exit_code=1), "lost peers are echoes"),
        Quiet(make_case({r: ["all_reduce[8]@main:10"] for r in range(4)}, hang=None, exit_code=0), "no failure"),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding on the primary exception, unless a more specific rule names it."""
        first = s.primary_failure
        if first is None or first.kind != "exception" or first.error is None:
            return
        if any(p.search(text_of(first)) for p in SPECIAL) or is_file_race(s, first):
            return
        head = (first.error.message.splitlines() or [""])[0][:140]
        yield describe_failure(s, self, same_failures(s, first), 0.95, f"raised {first.error.type}: {head}", _FIXES)


_FIXES = (
    Fix(
        "Mend what raised; do not catch it on one rank",
        patch="catching the exception and going on makes the rank skip collectives: the peers then hang",
        verify="unhang run -- <the same command>: outcome clean",
        undo="revert the edit",
    ),
)
