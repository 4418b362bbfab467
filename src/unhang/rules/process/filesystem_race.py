"""Rule: ranks race for a file or folder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from unhang.analyze.situation import Situation
from unhang.model import Finding, Fix
from unhang.model.example import Fires, Quiet
from unhang.rules.base import Rule
from unhang.rules.examples import log_case, make_case
from unhang.rules.failure import describe_first, first_exception, is_file_race

_ERROR = "RuntimeError: Parent directory runs/ck does not exist.@main:30>save:7"

_MADE_TWICE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/app/data.py", line 12, in rotate
[rank3]:     shutil.rmtree(old)
[rank3]: OSError: [Errno 39] Directory not empty: 'checkpoint-500'
"""


class FilesystemRace(Rule):
    """Some ranks look for a file or folder that another rank has not made yet, or made already.

    What it detects:
        The first failure is a missing or existing path, on some ranks but not on all. In a log, where ranks that went on say
        nothing: a path that only a race leaves (a temporary name that is gone at the rename, a folder made twice, an index file
        that one rank builds).

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
    EXAMPLES: ClassVar = (
        Fires(make_case({}, errors=dict.fromkeys((1, 2, 3), _ERROR), hang=None, exit_code=1), (1, 2, 3), 7),
        Fires(log_case(_MADE_TWICE), (3,), 12),
        Quiet(log_case(_MADE_TWICE.replace("[Errno 39] Directory not empty", "[Errno 28] no space")), "another error"),
        Quiet(
            log_case("[rank0]: FileNotFoundError: [Errno 2] No such file or directory: 'train.json'"),
            "a path that was never there",
        ),
        Quiet(
            make_case({}, errors=dict.fromkeys(range(4), _ERROR), hang=None, exit_code=1),
            "a path that is missing everywhere is no race",
        ),
    )

    def check(self, s: Situation) -> Iterable[Finding]:
        """One finding if some ranks failed on a path."""
        first = first_exception(s)
        if first is not None and is_file_race(s, first):
            sure = 0.93 if first.failures else 0.78
            what = f"did not find (or found already) a path that another rank makes ({first.head}),"
            yield describe_first(s, self, first, sure, what, _FIXES)


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
