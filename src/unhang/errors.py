"""What can go wrong with us, grouped by who must act. Printed and turned into an exit code in one place (`cli.main`)."""

from __future__ import annotations


class UnhangError(Exception):
    """Any failure that a user of unhang sees as one line."""

    exit_code = 2
    help_text = ""


class UnreadableInput(UnhangError):
    """A file cannot be read as what it claims to be. The analysis of the other files goes on."""

    help_text = "check that the file was copied completely, or leave it out"


class NothingToJudge(UnhangError):
    """The input holds no evidence on a distributed job."""

    exit_code = 3
    help_text = "give a bundle folder written by 'unhang run', or flight-recorder dumps"


class WrongUsage(UnhangError):
    """The command line asks for something that makes no sense."""

    help_text = "see 'unhang COMMAND --help'"


class RanksDiffer(UnhangError):
    """The ranks are not set up alike, or would not make the same calls. Every rank raises it, with the same text."""

    help_text = "start all ranks with the same settings, code and data"


class PeerFailed(UnhangError):
    """Another rank failed first; its traceback is in the text."""

    help_text = "mend what failed there; this rank only waited for it"
