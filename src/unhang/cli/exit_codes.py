"""The exit codes of all commands, in one table: the help, the page and the manual are made from it."""

from __future__ import annotations

from collections.abc import Mapping

# The same for every command.
GENERAL: Mapping[int, str] = {
    0: "done, and nothing is wrong",
    1: "something is wrong: a finding, a hang, a check that failed",
    2: "wrong usage, or a file that cannot be read or written",
    3: "no verdict: the evidence is not enough",
    130: "interrupted by Ctrl-C",
}
JOBS = "the job's own, or 128+n where signal n ended it"
# What they mean for one command. "job": the command ends with the exit code of the job that it runs.
OF_COMMAND: Mapping[str, Mapping[int | str, str]] = {
    "run": {
        "job": JOBS,
        124: "the job hung and was ended",
        126: "the command is not executable",
        127: "there is no such command",
        2: "wrong usage",
    },
    "attach": {0: "the job moves", 1: "something is wrong", 3: "could not judge"},
    "diagnose": {0: "nothing wrong", 1: "findings, or a failure of unknown cause", 3: "the evidence is not enough"},
    "fix": {
        0: "there is a diff, or nothing to fix",
        2: "wrong usage, or the file has changed since the run",
        3: "no diff can be made",
    },
    "reports": {0: "done", 2: "there is no report"},
    "bundle": {0: "written"},
    "check": {0: "nothing wrong", 1: "findings", 3: "could not judge, or an area of --require was skipped"},
    "lint": {0: "nothing found", 1: "findings", 2: "wrong usage, or a file that could not be judged"},
    "reproduce": {
        0: "written, and it fails in the same way (with --reduce: every run passed)",
        1: "a run failed (with --reduce)",
        3: "it cannot be reproduced from the calls",
    },
    "verify": {0: "as expected", 1: "not as expected", 3: "could not judge"},
    "inject": {"job": JOBS, 0: "listed (with --list)", 2: "wrong usage, or no such fault", 3: "no fault happened"},
    "demo": {0: "the cause was named and the fix verified", 1: "not", 3: "could not judge"},
    "env": {0: "nothing wrong", 1: "findings", 3: "nothing to judge"},
    "explain": {0: "explained", 2: "an unknown word, or an unreadable file", 3: "no line of the text is known"},
    "skill": {0: "written, or valid", 1: "not valid"},
    "mcp": {0: "stdin was closed", 2: "wrong usage, or the SDK is missing"},
    "completion": {0: "written"},
}


def codes_of(command: str) -> Mapping[int | str, str]:
    """The exit codes of one command and what they mean, the job's own first."""
    own = OF_COMMAND.get(command, {0: GENERAL[0]})
    whole = own if 2 in own else {**own, 2: GENERAL[2]}
    return dict(sorted(whole.items(), key=lambda item: -1 if isinstance(item[0], str) else item[0]))


def sentence(command: str) -> str:
    """The exit codes in one sentence, for the command's help."""
    said = (meaning if code == "job" else f"{code} {meaning}" for code, meaning in codes_of(command).items())
    return f"Exit code: {'; '.join(said)}."
