"""What can go wrong with us, grouped by who must act. Printed and turned into an exit code in one place (`cli.main`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class UnhangError(Exception):
    """Any failure that a user of unhang sees as one line."""

    exit_code = 2
    help_text = ""


class UnreadableInput(UnhangError):
    """A file cannot be read as what it claims to be. The analysis of the other files goes on."""

    help_text = "check that the file was copied completely, or leave it out"


class NotEvidence(UnreadableInput):
    """What was given is missing, empty, or something else than evidence. The line says all."""

    help_text = ""


class NothingToJudge(UnhangError):
    """The input holds no evidence on a distributed job."""

    exit_code = 3
    help_text = "pass a report folder of 'unhang run', or flight-recorder dumps"


class WrongUsage(UnhangError):
    """The command line asks for something that makes no sense."""

    help_text = "see 'unhang COMMAND --help'"


class CannotWrite(UnhangError):
    """The output cannot be written where it was asked for."""


class NoTorch(UnhangError):
    """The command starts ranks of its own, and torch is not there."""

    help_text = "install torch into the environment of unhang"


class NoNumpy(UnhangError):
    """Recorded calls and dumps are read with numpy, and it is not there. Logs, settings and code need none."""

    help_text = "recorded calls are read with numpy: pip install 'unhang[stacks]', or numpy alone"


class RanksDiffer(UnhangError):
    """The ranks are not set up alike, or would not make the same calls. Every rank raises it, with the same text."""

    help_text = "start all ranks with the same settings, code and data"


class PeerFailed(UnhangError):
    """Another rank failed first; its traceback is in the text.

    `failure`: which rank, and why, as it stands on the notice board; so that whoever hears of this error names that rank.
    """

    help_text = "fix what failed there; this rank only waited for it"
    failure: Mapping[str, object] | None = None


class SectionOverran(UnhangError):
    """A section took longer than its limit, and was asked to raise. Raised where it is left, never in the middle of it."""

    help_text = "see who the others waited for in the [section] lines, or give the section a longer limit"


class GroupInUse(UnhangError):
    """A second thread wants to use a group while a first one does."""

    help_text = "let one thread do both, or have the second wait: turn(..., wait_s=60)"


class WeightSyncFailed(UnhangError):
    """The new weights did not get to all generators; they go on with the old ones, or stop where that was asked for."""

    help_text = "see who did not answer; nothing is left paused, and publish() can be called again"


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The nearest of the known words as a question, to be put behind an error; empty where none is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), 1, cutoff)
    return f"; did you mean {near[0]}?" if near else ""
