"""What NCCL's RAS client reports of the communicators of a running job, put together from its lines.

Its counts are those of *launches*: of what the host has issued, not of what the device has completed. A running job shows
differences at any moment. Ranks are numbered within their communicator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from unhang.model import LogEvent, LogLine

_TOTALS = re.compile(r"\s*\d{1,7}\s+\d{1,7}\s+\d{1,7}\s+\d{1,7}\s+(\d{1,7})\s*")
_FAMILY = "ras."


@dataclass(frozen=True)
class Member:
    """A rank of a communicator. `rank`: its rank in the job, where it is known. `launched`: None where it is missing."""

    member: int
    rank: int | None
    pid: int | None
    node: str
    launched: int | None
    event: LogEvent


@dataclass
class Counts:
    """How often the ranks of one communicator have launched one operation. `shares`: how many ranks, by their count."""

    communicator: str
    operation: str
    size: int
    shares: dict[int, int] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)

    @property
    def most(self) -> int:
        """The highest count."""
        return max(self.shares, default=0)

    @property
    def behind(self) -> list[Member]:
        """The members that are listed with a lower count."""
        return [m for m in self.members if m.launched is not None and m.launched < self.most]

    @property
    def is_whole(self) -> bool:
        """Whether every member that is behind is listed: a short report leaves out what is more than a quarter."""
        lower = sum(count for launched, count in self.shares.items() if launched < self.most)
        return lower == len(self.behind) and sum(self.shares.values()) >= self.size


@dataclass
class Report:
    """One answer of RAS.

    Args:
        world: how many GPUs the job has, 0 if not reported.
        largest: how many ranks its largest communicator has.
        is_agreed: whether its table finds nothing wrong with any communicator. `is_cut`: whether communicators are cut off.
        processes: the node and pid of the missing and the dead.
    """

    world: int = 0
    communicators: int = 0
    largest: int = 0
    is_agreed: bool = True
    is_cut: bool = False
    troubled: set[str] = field(default_factory=set)
    counts: list[Counts] = field(default_factory=list)
    missing: list[Member] = field(default_factory=list)
    missing_events: list[LogEvent] = field(default_factory=list)
    processes: set[tuple[str, int]] = field(default_factory=set)
    dead: int = 0


class _Reader:
    """Takes the events of RAS in their order."""

    def __init__(self, lines: Sequence[LogLine]) -> None:
        self.reports: list[Report] = []
        self._lines = lines
        self._world = 0
        self._sizes: dict[str, int] = {}
        self._communicator, self._state, self._group = "", "", ""
        self._counts: Counts | None = None
        self._share: int | None = None

    def take(self, e: LogEvent) -> None:
        what = e.kind.removeprefix(_FAMILY)
        if what == "job":
            self._world = self._total(e.order)
        elif what == "report":
            self.reports.append(Report(self._world))
            self._world, self._sizes = 0, {}
            self._close()
        else:
            if not self.reports:
                self.reports.append(Report(self._world))
            self._part(self.reports[-1], what, e)

    def _total(self, order: int) -> int:
        """The GPUs of the job, in one of the lines under the heading."""
        rows = (_TOTALS.fullmatch(line.text) for line in self._lines[order + 1 : order + 4])
        return next((int(row[1]) for row in rows if row), 0)

    def _close(self) -> None:
        self._communicator, self._state, self._group, self._counts, self._share = "", "", "", None, None

    def _part(self, report: Report, what: str, e: LogEvent) -> None:
        if what == "row":
            report.communicators += e.number("communicators") or 0
            report.is_agreed = report.is_agreed and e["errors"] == "OK"
            self._sizes[e["group"]] = size = e.number("size") or 0
            report.largest = max(report.largest, size)
        elif what == "cut":
            report.is_cut = True
        elif what == "communicator":
            self._close()
            self._communicator, self._state, self._group = e["hash"], e["state"], e["group"]
            report.troubled.add(e["hash"])
        elif what == "counts":
            self._share, self._counts = None, None
            if e["operation"]:
                self._counts = Counts(self._communicator, e["operation"], self._sizes.get(self._group, 0))
                self._counts.events.append(e)
                report.counts.append(self._counts)
        elif what == "share" and self._counts is not None:
            self._share = e.number("launched") or 0
            self._counts.shares[self._share] = e.number("count") or 0
            self._counts.events.append(e)
        elif what == "rank":
            self._rank(report, e)
        elif what in ("missing", "missing_ranks", "dead", "process"):
            self._missing(report, what, e)

    def _rank(self, report: Report, e: LogEvent) -> None:
        if self._state == "INCOMPLETE":
            report.missing.append(self._member(report, e, e.number("member") or 0, None))
            report.missing_events.append(e)
            if (pid := e.number("pid")) is not None:
                report.processes.add((e["node"], pid))
        elif self._counts is not None:
            launched = (e.number("launched") or 0) if e["state"] else self._share
            if e["state"]:
                self._counts.shares[launched or 0] = 1
            self._counts.members.append(self._member(report, e, e.number("member") or 0, launched))
            self._counts.events.append(e)

    def _missing(self, report: Report, what: str, e: LogEvent) -> None:
        report.missing_events.append(e)
        if what == "dead":
            report.dead += e.number("count") or 0
        elif what == "process":
            report.processes.add((e["node"], e.number("pid") or 0))
        elif what == "missing_ranks":
            for part in e["ranks"].replace(" ", "").split(","):
                first, _, last = part.partition("-")
                for member in range(int(first), min(int(last or first), int(first) + 4096) + 1):
                    report.missing.append(self._member(report, e, member, None))

    def _member(self, report: Report, e: LogEvent, member: int, launched: int | None) -> Member:
        """In a communicator of all GPUs of the job a rank is that of the job."""
        size = self._sizes.get(self._group, 0)
        rank = e.number("rank")
        is_of_all = size == report.world if report.world else report.communicators == 1
        if rank is None and size and is_of_all:
            rank = member
        return Member(member, rank, e.number("pid"), e["node"], launched, e)


def reports_in(events: Iterable[LogEvent], lines: Sequence[LogLine]) -> list[Report]:
    """The reports, in the order given. A part of one that begins in its middle counts, too."""
    reader = _Reader(lines)
    for event in events:
        if event.kind.startswith(_FAMILY):
            reader.take(event)
    return [r for r in reader.reports if r.communicators or r.troubled or r.missing_events]


def ras_evidence(events: Iterable[LogEvent], lines: Sequence[LogLine]) -> tuple[str, ...]:
    """What the last report says of the communicators, in a short phrase."""
    reports = reports_in(events, lines)
    if not reports:
        return ()
    last = reports[-1]
    more = ", the report is cut off" if last.is_cut else ""
    more += "" if len(reports) == 1 else f" (the last of {len(reports)} reports)"
    s = "" if last.communicators == 1 else "s"
    if last.is_agreed and not last.troubled and not last.missing_events:
        return (f"RAS: all ranks of {last.communicators} communicator{s} agree{more}",)
    of = f" of {last.communicators} communicator{s}" if last.communicators else ""
    found = f"{len(last.troubled)}{of}" if last.troubled else "some communicators"
    return (f"RAS: missing or differing ranks in {found}{more}",)
