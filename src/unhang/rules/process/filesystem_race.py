"""Rule: ranks race for a file or folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet, make_case
from unhang.rules.base import Rule
from unhang.rules.failure import describe_failure, is_file_race, same_failures

_ERROR = "RuntimeError: Parent directory runs/ck does not exist.@main:30>save:7"


class FilesystemRace(Rule):
    """Some ranks look for a file or folder that another rank has not made yet, or made already.

    What it detects:
        The first failure is a missing or existing path, on some ranks but not on all.

    Why it hangs:
        The ranks that fail are gone; the one that made the path waits for them in the next collective.

    How to confirm:
        Which rank makes the path, and whether the others wait for it.

    How to fix:
        Every rank makes the folder with `exist_ok=True`, or a barrier stands between making and using.

    Sources:
        A checkpoint folder that only rank 0 created.
    """

    id = "filesystem-race"
    cause = "filesystem-race"
    needs = ("ranks",)
    EXAMPLES: ClassVar = (
        Fires(make_case({}, errors=dict.fromkeys((1, 2, 3), _ERROR), hang=None, exit_code=1), (1, 2, 3), 7),
        Quiet(
            make_case({}, errors=dict.fromkeys(range(4), _ERROR), hang=None, exit_code=1),
            "a path that is missing everywhere is no race",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if some ranks failed on a path."""
        first = s.primary_failure
        if first is not None and first.kind == "exception" and is_file_race(s, first):
            yield describe_failure(
                s,
                self,
                same_failures(s, first),
                0.93,
                "did not find (or found already) a path that another rank makes,",
                _FIXES,
            )


_FIXES = (
    Fix(
        "Let every rank make the folder",
        patch="os.makedirs(folder, exist_ok=True)   # on every rank, before it is used",
        verify="unhang run -- <the same command>",
        undo="revert the edit",
    ),
    Fix(
        "Or wait for the rank that makes it",
        patch="if rank == 0: make()\ndist.barrier()\nuse()",
        verify="unhang run -- <the same command>",
        undo="revert the edit",
    ),
)
