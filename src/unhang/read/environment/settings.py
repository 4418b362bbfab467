"""Where a job sets environment variables: one `Settings` for each file, process or log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_VALUE = 4096


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable that is set in one place.

    `value` is None where it is computed when the job runs; `expression` is then what computes it. `is_default`: it counts
    only where the variable is not set already. `reported_by`: who tells it (the process, a script's line, a host in a log).
    """

    name: str
    value: str | None
    line: int | None = None
    expression: str = ""
    is_default: bool = False
    reported_by: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher's command line: its options, without the script's."""

    program: str
    options: Mapping[str, str]
    line: int


@dataclass(frozen=True)
class Settings:
    """What one source sets. `form`: process, shell, python, yaml, config, log or document. `mentions`: names whose value it uses itself."""

    path: str
    form: str
    assignments: tuple[Assignment, ...] = ()
    mentions: frozenset[str] = frozenset()
    launches: tuple[Launch, ...] = ()
    interfaces: frozenset[str] | None = field(default=None)

    @property
    def is_live(self) -> bool:
        """Whether this is the whole environment of a process: what is not in it is not set."""
        return self.form == "process"

    @property
    def is_one_node(self) -> bool:
        """Whether every launcher that it starts is told to use one node."""
        one = ("1", "1:1")
        return bool(self.launches) and all(
            "standalone" in x.options or x.options.get("nnodes") in one or x.options.get("num-machines") in one
            for x in self.launches
        )

    def last(self, name: str) -> Assignment | None:
        """The assignment that counts; one that only fills a gap does not override an earlier one."""
        found: Assignment | None = None
        for assignment in self.assignments:
            if assignment.name == name and not (found is not None and assignment.is_default):
                found = assignment
        return found


def unquoted(text: str) -> str:
    """A value without the quotes around it, and without one that was cut off."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.count('"') == 1:
        text = text.strip('"')
    return text.strip("'") if text.count("'") == 1 else text
