"""An incident as a log, and what a disguise of it is."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.logs import chatter
from unhang.read.logs import all_patterns
from unhang.read.logs.case import case_of_outputs
from unhang.read.logs.clock import SECOND_NS
from unhang.read.output_log import OutputLog, parse_output

Files = dict[str, bytes]
Number = int
START_NS = 1_772_355_600 * SECOND_NS  # of logs without times
LOCAL, PART = 8, 400
ABORT = re.compile(
    r"terminate called|Watchdog caught|taking the entire process down|what\(\):|Exception raised from|SIGABRT"
)
GOES_ON = re.compile(r"^(?:\s|frame #|#\d|[|│╰└+])|^$")


@dataclass(frozen=True)
class Line:
    """A line as it stands in the incident, and what the lines alone tell of it."""

    raw: str
    body: str
    rank: int | None
    time_ns: int
    is_event: bool
    is_trace: bool

    @property
    def prefix(self) -> str:
        """What stands before the message."""
        return self.raw[: self.raw.find(self.body)] if self.body and self.body in self.raw else ""


@dataclass(frozen=True)
class Incident:
    """The lines of an incident. `name` seeds what is drawn."""

    name: str
    log: str

    @cached_property
    def read(self) -> OutputLog:
        """The lines as they are read alone."""
        return parse_output(self.log.encode(errors="surrogateescape"), "job.log")

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """All lines. One without a time has that of the line before it, and a moment more."""
        case = case_of_outputs([self.read])
        of_events = {e.source.line for e in case.events}
        first = {}
        for told in self.read.lines:
            first.setdefault(told.source.line, told)
        traces = {error.source.line for _, error in self.read.errors}
        found: list[Line] = []
        last, in_trace = START_NS, False
        for number, raw in enumerate(self.log.rstrip("\n").split("\n"), 1):
            told = first.get(number)
            body = told.text if told else raw
            starts = number in traces or "Traceback (most recent" in raw
            in_trace = (
                starts
                or (in_trace and body[:1] in (" ", "\t", "│", "|"))
                or (in_trace and bool(found) and found[-1].is_trace and not _is_plain(found[-1].body))
            )
            last = max(last + 1_000_000, told.time_ns or 0) if told else last + 1_000_000
            found.append(Line(raw, body, told.rank if told else None, last, number in of_events, in_trace))
        return tuple(found)

    @cached_property
    def tells(self) -> bool:
        """Whether a line is more than a notice: what is judged instead of an attempt that failed before."""
        roles = {row.kind: row.role for row in all_patterns()}
        case = case_of_outputs([self.read])
        return bool(self.read.errors) or any(roles.get(e.kind, "root") in ("root", "witness") for e in case.events)

    @property
    def ranks(self) -> list[int]:
        """The ranks that the lines tell."""
        return sorted({line.rank for line in self.lines if line.rank is not None})

    @property
    def draw(self) -> random.Random:
        """The same for the same incident."""
        return random.Random(self.name)

    @property
    def evidence(self) -> tuple[int, int]:
        """The first line that says something, and the one behind the last."""
        told = [i for i, line in enumerate(self.lines) if line.is_event or line.is_trace]
        has_summary = bool(self.read.exits)
        return (told[0], len(self.lines) if has_summary else told[-1] + 1) if told else (0, len(self.lines))


def _is_plain(body: str) -> bool:
    """Whether a line ends a traceback: the exception itself."""
    return bool(re.match(r"[A-Za-z_][\w.]*(?:: |:$|$)", body)) and not body.startswith("Traceback")


Make = Callable[[Incident], Files]


@dataclass(frozen=True)
class Disguise:
    """One way in which the lines lie in a log. `keeps`: what of the lines must stay as it is; `every`: each so many-th incident is tried."""

    name: str
    keeps: str
    make: Make
    every: int = 1

    def write(self, incident: Incident, folder: Path) -> Path:
        """Writes the files; the one log, or the folder of several."""
        files = self.make(incident)
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        return folder / next(iter(files)) if len(files) == 1 else folder


ALL: list[Disguise] = []


def disguise(keeps: str) -> Callable[[Make], Make]:
    """Adds a way to the list."""

    def add(make: Make) -> Make:
        ALL.append(Disguise(make.__name__, keeps, make, 16 if make.__name__.startswith("huge_") else 1))
        return make

    return add


def text(lines: Iterable[str]) -> bytes:
    """The lines of a file."""
    return ("\n".join(lines) + "\n").encode(errors="surrogateescape")


def one(lines: Iterable[str], name: str = "job.log") -> Files:
    """One log."""
    return {name: text(lines)}


def between(incident: Incident) -> Iterator[tuple[Line, bool]]:
    """The lines, and whether something may stand behind each: not inside a traceback or a backtrace."""
    lines = incident.lines
    for line, following in zip(lines, [*lines[1:], None], strict=True):
        inside = following is not None and (
            bool(GOES_ON.match(following.body)) or (line.is_trace and following.is_trace)
        )
        yield line, not (inside or GOES_ON.match(line.body))


def started(incident: Incident) -> list[tuple[int | None, str, int]]:
    """Lines of a start in front, from each of a few ranks: (rank, line, time)."""
    ranks = incident.ranks or [0]
    ranks = sorted({*ranks[:4], 0})
    begin = incident.lines[0].time_ns - 60 * SECOND_NS
    lines = chatter.start(incident.draw, 24)
    return [(ranks[i % len(ranks)], line, begin + i * SECOND_NS // 4) for i, line in enumerate(lines)]


def labelled(incident: Incident, label: Callable[[int | None, int], str]) -> list[str]:
    """Lines of a start and those of the incident, each behind its label, made from rank and time."""
    front = [label(rank, time_ns) + line for rank, line, time_ns in started(incident)]
    return front + [label(line.rank, line.time_ns) + line.raw for line in incident.lines]


def stamp(time_ns: int, form: str = "%Y-%m-%dT%H:%M:%S") -> str:
    """A time, in UTC."""
    import time

    return time.strftime(form, time.gmtime(time_ns // SECOND_NS))
